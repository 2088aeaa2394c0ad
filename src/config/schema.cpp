#include "config/schema.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "config/reader.h"

namespace ringtrain {
namespace {

constexpr double int32_limit = 2147483647, step_limit = 1e12, epoch_limit = 1e6, second_limit = 1e9;

// Key and member come from one spelling, so they cannot differ.
#define FIELD(path) Field(#path, [](Experiment& experiment) -> Member { return &experiment.path; })

// clang-format off
std::vector<Field> make_schema() {
  return {
    FIELD(name).how_it_runs().required().folder_name().also({"experiment", "title"})
      .means("What the experiment is called; its runs live in results/<name>/."),
    FIELD(seed).also({"random_seed"})
      .means("The order of samples, the initial weights and dropout follow from it, never from the number of ranks."),
    FIELD(precision).words({"fp32", "tf32", "bf16", "fp16"}).also({"dtype", "amp"})
      .means("Arithmetic of the matrix products; bf16 needs a processor that has it, tf32 and fp16 a GPU. Weights and state: fp32."),

    FIELD(model.kind).words({"char_lstm", "resnet", "alexnet", "cnn"}).also({"arch", "architecture"})
      .means("char_lstm predicts the next character. resnet: He et al. 2015. alexnet: Krizhevsky 2014. cnn: three convolutions, for small images."),
    FIELD(model.hidden).unit("units").from(1, 65536).only_with("model.kind", {"char_lstm"})
      .also({"hidden_size", "rnn_size", "units"}).means("Width of every LSTM layer."),
    FIELD(model.layers).unit("layers").from(1, 64).only_with("model.kind", {"char_lstm"}).also({"num_layers"})
      .means("LSTM layers on top of each other."),
    FIELD(model.dropout).fraction().only_with("model.kind", {"char_lstm", "alexnet"}).also({"drop"})
      .means("Probability that a value between two LSTM layers, or before AlexNet's hidden dense layers (0.5 in the "
             "paper), is set to zero in training. One LSTM layer: no effect."),
    FIELD(model.depth).unit("layers").from(18, 152).only_with("model.kind", {"resnet"})
      .means("18, 34, 50, 101 or 152."),
    FIELD(model.width).unit("channels").from(16, 4096).only_with("model.kind", {"resnet"})
      .means("Of the first stage, a multiple of 16; every later stage has twice as many. 64 in the paper."),
    FIELD(model.stem).words({"imagenet", "small"}).only_with("model.kind", {"resnet"})
      .means("imagenet: 7 x 7 convolution with stride 2, then max pooling. small: 3 x 3 with stride 1, for images of 32 "
             "to 64 pixels."),
    FIELD(model.zero_gamma).only_with("model.kind", {"resnet"}).also({"zero_init_residual"})
      .means("Whether the last norm of every block starts with gamma = 0 instead of 1 (Goyal et al. 2017, section 5.1)."),
    FIELD(model.stride_in).words({"3x3", "1x1"}).only_with("model.kind", {"resnet"})
      .means("Which convolution of a bottleneck has the stride. 3x3: version 1.5 (fb.resnet.torch, Goyal, MLPerf, "
             "torchvision). 1x1: the first one, version 1 (He et al. 2015, You et al. 2017). Depths 18 and 34 have no "
             "bottlenecks."),
    FIELD(model.norm_momentum).above(0, 1).only_with("model.kind", {"resnet", "alexnet"}).also({"bn_momentum"})
      .means("Share of a step's statistics (the mean over all virtual workers) in batch norm's running ones: 0.1 is the "
             "0.9 of Goyal et al."),
    FIELD(model.norm).only_with("model.kind", {"alexnet"}).also({"batch_norm", "bn"})
      .means("Whether batch norm follows every convolution, which then has no bias: AlexNet-BN (Ginsburg's, on which "
             "You et al. 2017 tried LARS)."),
    FIELD(model.initial).words({"he", "truncated_normal", "uniform"}).also({"init", "initializer"})
      .means("The initial weights. he: convolutions N(0, 2 / fan out) (He et al. 2015), ResNet's last layer N(0, 0.01^2), "
             "other dense layers and the LSTM as PyTorch's. truncated_normal: images only, variance 2 / fan in, cut off at 2 "
             "deviations, ResNet's last layer with deviation 0.01, biases 0 (he_normal of TensorFlow, MLPerf's option). "
             "uniform: all weights and biases in +-initial_range. Norms start at gamma 1 (or zero_gamma) and beta 0."),
    FIELD(model.initial_range).from(0, 100).only_with("model.initial", {"uniform"}).also({"init_range"})
      .means("0.08 in char-rnn. 0: char_lstm's own, 1 / sqrt(hidden)."),
    FIELD(model.forget_bias).from(-100, 100).only_with("model.kind", {"char_lstm"})
      .means("What the forget gates' bias b_ih starts at, 1 in char-rnn; b_hh, which is added to it, starts as all others. "
             "0: b_ih does so, too."),

    FIELD(data.train).how_it_runs().required().also({"dataset", "train_data"})
      .means("Prefix of the training shards, <prefix>-00000-of-00002.h5 and so on, or one file that ends in .h5."),
    FIELD(data.validation).how_it_runs().also({"valid", "val", "test"})
      .means("Prefix of the validation shards. \"\": no evaluation."),
    FIELD(data.order).words({"windows", "streams"})
      .means("Running text only. windows: pieces, in a new random order every epoch. streams: every row of the global "
             "batch reads its own part of the text from start to end and carries its hidden state along."),
    FIELD(data.sequence).unit("characters").from(1, 1e6).also({"seq_length", "sequence_length"})
      .means("Running text only: characters per sample. Names bring their own length."),
    FIELD(data.blanks).words({"counted", "masked"}).also({"padding"})
      .means("Names only: whether the blanks that pad short names count in the losses."),
    FIELD(data.image_size).unit("pixels").from(8, 4096).also({"img_size", "crop_size", "resolution"})
      .means("Images only: side of the square that the model sees."),
    FIELD(data.resize).unit("pixels").from(0, 8192)
      .means("Images only, evaluation (and training without random_resized_crop): the short side is resized to this, "
             "then the central square is cut out, as torchvision does. 0: cut out of the stored image."),
    FIELD(data.augmentation).words({"random_resized_crop", "pad_crop", "none"}).also({"augment"})
      .means("Images only, training. random_resized_crop: a random part, resized (Szegedy et al. 2014, as torchvision). "
             "pad_crop: pad, then a random square, as for CIFAR. none: as in evaluation."),
    FIELD(data.crop_area).above(0, 1).only_with("data.augmentation", {"random_resized_crop"}).also({"scale"})
      .means("Smallest and largest share of the image."),
    FIELD(data.crop_ratio).above(0, 100).only_with("data.augmentation", {"random_resized_crop"}).also({"ratio"})
      .means("Smallest and largest width / height; log-uniform."),
    FIELD(data.pad).unit("pixels").from(0, 1024).only_with("data.augmentation", {"pad_crop"}).means("On all sides."),
    FIELD(data.flip).means("Images only: whether half of the training images are mirrored."),
    FIELD(data.mean).from(0, 1).means("Images only: per channel, of pixels / 255, subtracted. []: the data set's own."),
    FIELD(data.std).above(0, 1).means("Images only: per channel, divided by. []: the data set's own."),
    FIELD(data.train_samples).how_it_runs().unit("samples").from(0, 1e12)
      .means("What the training set must hold; another number is an error. With data.classes stated too, `plan` works "
             "where the images are not. 0: not stated."),
    FIELD(data.validation_samples).how_it_runs().unit("samples").from(0, 1e12).means("The same for the validation set."),
    FIELD(data.classes).unit("classes").from(0, 1e6).also({"num_classes"}).means("The same for the classes of images."),
    FIELD(data.last_batch).words({"drop", "smaller"}).also({"drop_last"})
      .means("What happens at the end of an epoch to samples that fill no batch. drop: they are left out. smaller: they "
             "are a smaller batch, so that every sample counts once an epoch, and an epoch has its steps rounded up "
             "(MLPerf, JAX). Loss, gradient, rate and noise scale go by its true size. Its other rows repeat the epoch's "
             "first images, which count in batch norm's statistics only."),
    FIELD(data.loader_threads).how_it_runs().unit("threads").from(1, 256).also({"num_workers"})
      .means("Threads of each rank that read samples in the background."),
    FIELD(data.reads).how_it_runs().unit("records").from(1, 256)
      .means("Images only: how many each rank reads at the same time, so that a network file system's latency hides."),
    FIELD(data.prefetch).how_it_runs().unit("micro-batches").from(1, 1024).means("How many are kept ready ahead of training."),

    FIELD(batch.global).unit("samples").required().from(1, int32_limit).also({"batch_size", "global_batch_size"})
      .means("Samples per optimizer step, whatever the number of ranks."),
    FIELD(batch.worker).unit("samples").required().from(1, int32_limit).also({"local_batch", "batch_per_gpu"})
      .means("Samples per virtual worker: the group of batch norm. Divides batch.global; the ranks must divide the "
             "number of workers, batch.global / batch.worker. With batch norm, on CPUs, a power of two of ranks of one "
             "node may share each worker; a pass is then a rank's part of one worker."),
    FIELD(batch.micro).how_it_runs().unit("samples").from(0, int32_limit).also({"micro_batch", "micro_batch_size"})
      .means("Samples in one device pass: speed and memory, not the result. Divides each rank's share of "
             "batch.global. 0: chosen by the backend."),
    FIELD(batch.schedule).above(0, 1e6)
      .means("[epoch, times] pairs: from that epoch on the batch is batch.global x times, in more micro-batches (Smith et "
             "al. 2018): [[60, 5], [120, 25], [160, 125]]. The rate stays what learning_rate.* says for batch.global. The "
             "ranks must divide the workers of every batch. Schedules go on counting epochs; stop.steps counts updates."),
    FIELD(batch.largest).unit("samples").from(0, int32_limit)
      .means("The largest batch, for batch.schedule and batch.follow_noise. Where the schedule asks for more, the rate is "
             "divided by what is missing instead. 0: no limit."),
    FIELD(batch.follow_noise).from(0, 1e6)
      .means("The multiple of the noise scale that the batch aims at. It doubles, up to batch.largest, when it has been "
             "below this multiple of noise_scale_low, the lower end of the scale's 95 % interval, for batch.patience "
             "samples; it never shrinks. Needs noise.small_batch, so that the ranks decide nothing. 0: off."),
    FIELD(batch.patience).unit("samples").from(0, 1e15)
      .means("Of batch.follow_noise: over so many samples in a row. 0: noise.half_life."),

    FIELD(loss.label_smoothing).fraction().also({"smoothing"})
      .means("Images only: training targets are (1 - s) x the label + s / classes (Szegedy et al. 2016). Evaluation "
             "uses the label alone. 0: off."),

    FIELD(loss_scale.initial).above(0, 0x1p24).only_with("precision", {"fp16"})
      .means("By how much gradients are enlarged in the backward pass (Micikevicius et al. 2018)."),
    FIELD(loss_scale.growth_steps).unit("steps").from(0, step_limit).only_with("precision", {"fp16"})
      .means("The scale is doubled after so many updates in a row without overflow, and halved at an overflow, "
             "whose update is skipped. 0: it stays, and an overflow ends the run."),

    FIELD(optimizer.kind).words({"sgd", "lars", "adam", "adamw", "lamb", "rmsprop", "rmsprop_to_sgd", "muon"})
      .means("sgd: u = momentum u + g, w -= lr u. lars: SGD with a trust ratio for each tensor (You et al. 2017). adam: "
             "weight decay is added to the gradient. adamw: weight decay apart from it, w -= lr weight_decay w. lamb: "
             "AdamW's direction with a trust ratio |w| / |direction| for each tensor (You et al. 2020). rmsprop: "
             "w -= lr g / (sqrt v + epsilon), v the mean of squared gradients. rmsprop_to_sgd: RMSprop that turns into "
             "SGD with momentum (Akiba et al. 2017). muon: every weight matrix between the "
             "first and the last layer moves by its Nesterov momentum, made orthogonal (Jordan 2024, as torch.optim.Muon); "
             "a convolution is the matrix [out, in x kernel x kernel], an LSTM's gates are one, [4 hidden, input]."),
    FIELD(optimizer.momentum).fraction().only_with("optimizer.kind", {"sgd", "lars", "rmsprop_to_sgd", "muon"})
      .means("0: plain gradient descent. muon: m = momentum m + (1 - momentum) g; 0.95 is usual."),
    FIELD(optimizer.nesterov).only_with("optimizer.kind", {"sgd"})
      .means("Nesterov's form of momentum; needs optimizer.momentum above 0."),
    FIELD(optimizer.rate_in_momentum).only_with("optimizer.kind", {"sgd"})
      .means("The form v = momentum v + lr g, w -= v, with the rate inside the buffer (Caffe, LARS). The default form "
             "needs no correction when the rate changes."),
    FIELD(optimizer.momentum_correction).only_with("optimizer.kind", {"sgd"})
      .means("For rate_in_momentum: momentum x lr(t) / lr(t - 1) when the rate changes (Goyal et al. 2017, remark 2)."),
    FIELD(optimizer.beta1).fraction().only_with("optimizer.kind", {"adam", "adamw", "lamb", "muon"})
      .means("Decay of the mean of gradients."),
    FIELD(optimizer.beta2).fraction()
      .only_with("optimizer.kind", {"adam", "adamw", "lamb", "rmsprop", "rmsprop_to_sgd", "muon"})
      .also({"alpha", "rmsprop_decay"}).means("Decay of the mean of squared gradients."),
    FIELD(optimizer.epsilon).above(0, 1)
      .only_with("optimizer.kind", {"adam", "adamw", "lamb", "rmsprop", "rmsprop_to_sgd", "muon"}).also({"eps"})
      .means("Added to the root of the mean square."),
    FIELD(optimizer.weight_decay).from(0, 1000).also({"wd", "l2"}).means("0: off."),
    FIELD(optimizer.no_decay).words({"norm", "bias"}).also({"exclude_from_weight_decay"})
      .means("Parameters that weight decay leaves alone. norm: gamma and beta of batch norm (Goyal et al. 2017). bias: of "
             "dense, convolution and LSTM layers. []: it acts on everything, as in torchvision."),
    FIELD(optimizer.trust_coefficient).above(0, 1).only_with("optimizer.kind", {"lars"}).also({"eta", "eeta"})
      .means("The trust ratio, by which a tensor's rate is multiplied, is trust_coefficient |w| / (|g| + weight_decay "
             "|w|). A tensor of zeros has the ratio 1."),
    FIELD(optimizer.lars_form).words({"paper", "mlperf"}).only_with("optimizer.kind", {"lars"})
      .means("Both: v = momentum v + lr ratio (g + weight_decay w), w -= v. mlperf: kinds in no_trust do not decay, "
             "whatever no_decay says, and a gradient of zeros has the ratio 1."),
    FIELD(optimizer.no_trust).words({"norm", "bias"}).only_with("optimizer.kind", {"lars"})
      .means("Parameters without a trust ratio: they move at the full rate, as in MLPerf. []: all have one, as in the "
             "paper."),
    FIELD(optimizer.trust_undecayed).only_with("optimizer.kind", {"lamb"}).also({"use_nvlamb"})
      .means("Whether parameters without weight decay have a trust ratio, too. Without it they move as in Adam."),
    FIELD(optimizer.transition_center).unit("epochs").from(0, epoch_limit)
      .only_with("optimizer.kind", {"rmsprop_to_sgd"})
      .means("When RMSprop and SGD weigh the same: b_c of Akiba et al."),
    FIELD(optimizer.transition_length).unit("epochs").above(0, epoch_limit)
      .only_with("optimizer.kind", {"rmsprop_to_sgd"})
      .means("How long the transition takes, b_p: SGD's share is exp(2 (e - center) / length) / 2 before the center, "
             "then 1/2 + (e - center) / length, at most 1."),
    FIELD(optimizer.muon_rate).words({"original", "match_rms_adamw"}).only_with("optimizer.kind", {"muon"})
      .also({"adjust_lr_fn"})
      .means("By what a matrix's rate is multiplied. original: sqrt(max(1, rows / columns)). match_rms_adamw: 0.2 "
             "sqrt(max(rows, columns)), so that rates and decays of AdamW fit (Liu et al. 2025)."),
    FIELD(optimizer.other_kind).words({"adamw", "sgd"}).only_with("optimizer.kind", {"muon"})
      .means("What trains norms, biases, and the weights of the first and of the last layer. adamw has beta1, beta2 and "
             "epsilon; sgd has momentum, and its weight decay is added to the gradient."),
    FIELD(optimizer.other_rate).above(0, 1e6).only_with("optimizer.kind", {"muon"})
      .means("That optimizer's rate is the rate x other_rate."),
    FIELD(optimizer.schedule_free).only_with("optimizer.kind", {"sgd", "adamw"})
      .means("An average of the weights in place of a schedule (Defazio et al. 2024). z takes the steps, x averages z, each "
             "z by the square of the rate so that warm-up counts less, and the gradient is taken at y = (1 - b) z + b x, "
             "where b is momentum (sgd) or beta1 (adamw). x is what is evaluated, saved as weights, and exported. Weight "
             "decay acts at y. Needs learning_rate.schedule: constant (warm-up is allowed); with batch norm "
             "evaluate.norm_statistics: recomputed."),
    FIELD(optimizer.adascale).only_with("optimizer.kind", {"sgd"})
      .also({"ada_scale"})
      .means("AdaScale SGD (Johnson et al. 2020): the rate is multiplied by a gain r from 1 to S = batch.global / "
             "learning_rate.base_batch that follows from the gradients' noise, and the step counts as r steps of base_batch: "
             "the schedule, warm-up and stop.epochs are measured in those (an epoch is the data set / base_batch of them), "
             "stop.steps in updates. Schedule and rate are those of base_batch; no warm-up is needed. Above S = 1 it needs "
             "noise.small_batch, which is then part of the experiment."),
    FIELD(optimizer.clip_norm).from(0, 1e9).also({"grad_clip", "max_grad_norm", "clip"})
      .means("Gradients whose norm over all parameters is larger are scaled down to it. 0: off."),
    FIELD(optimizer.clip_value).from(0, 1e9)
      .only_with("optimizer.kind", {"sgd", "adam", "adamw", "lamb", "rmsprop", "rmsprop_to_sgd"})
      .also({"grad_clamp", "clip_grad_value"})
      .means("Every element of the gradient is cut to +-clip_value, in place of clip_norm (char-rnn). 0: off."),
    FIELD(optimizer.record_trust_every_steps).how_it_runs().unit("steps").from(0, step_limit)
      .only_with("optimizer.kind", {"lars", "lamb"})
      .means("How often metrics.jsonl has trust_ratios, the ratio of every tensor that has one. 0: off."),

    FIELD(learning_rate.base).above(0, 1e6).also({"lr", "learning_rate", "base_lr"})
      .means("The rate at a batch of base_batch samples."),
    FIELD(learning_rate.base_batch).unit("samples").from(0, int32_limit).also({"reference_batch"})
      .means("The batch that base was chosen at; k = batch.global / base_batch. Every scaling but none needs it; none "
             "keeps it as a note. 0: not stated."),
    FIELD(learning_rate.scaling).words({"none", "linear", "sqrt", "legw"})
      .means("The peak rate. none: base. linear: base x k (Goyal et al. 2017). sqrt: base x sqrt k (Krizhevsky 2014). "
             "legw: base x sqrt k, and warmup_epochs x k (You et al. 2019)."),
    FIELD(learning_rate.warmup_epochs).unit("epochs").from(0, epoch_limit).also({"warmup"})
      .means("The rate grows by the same amount at every step: warmup_from + (peak - warmup_from) t / T at the steps "
             "t = 0 ... T - 1, the peak at step T. 0: off."),
    FIELD(learning_rate.warmup_steps).unit("steps").from(0, step_limit).also({"warmup_iterations"})
      .means("The same in steps, in place of warmup_epochs. legw does not stretch it: k x the epochs at k x the batch "
             "are as many steps. 0: off."),
    FIELD(learning_rate.warmup_from).words({"base", "zero"})
      .means("Where warm-up starts: at the unscaled base (Goyal; needs a scaling, or base is the peak already) or at "
             "zero."),
    FIELD(learning_rate.schedule).words({"constant", "step", "polynomial", "cosine", "exponential", "points"})
      .also({"scheduler", "lr_policy"})
      .means("After warm-up. constant: peak. step: x factor at each milestone. polynomial: end + (peak - end) "
             "(1 - x)^power. cosine: end + (peak - end) (1 + cos(pi x)) / 2. x runs from 0 at the end of warm-up to 1 "
             "when the last step is done, so these two need stop.epochs or stop.steps. exponential: peak x "
             "factor^(epochs since the end of warm-up), changing at every step. points: a line that is drawn by hand."),
    FIELD(learning_rate.milestones).unit("epochs").above(0, epoch_limit).only_with("learning_rate.schedule", {"step"})
      .means("Increasing, measured from the start of training (warm-up included), rounded to the nearest step."),
    FIELD(learning_rate.points).from(0, 1e6).only_with("learning_rate.schedule", {"points"}).also({"lr_points"})
      .means("[epoch, factor] pairs: factors of the peak, joined by straight lines, constant before the first and after "
             "the last. Epochs count from the start of training (warm-up included) and are rounded to the nearest step. "
             "Two points at one epoch are a jump. [[0, 0], [2, 1], [16, 0]] is FFCV's ramp."),
    FIELD(learning_rate.every).words({"step", "epoch"}).also({"lr_update"})
      .means("How often the rate changes, warm-up included. epoch: all steps of an epoch have the rate of its first one; "
             "in the warm-up that of its end, (e + 1) / warmup_epochs of the way in epoch e = 0, 1, ..., so that "
             "warmup_from: zero moves in the first epoch, too (as in NVIDIA's DeepLearningExamples)."),
    FIELD(learning_rate.factor).above(0, 1000).only_with("learning_rate.schedule", {"step", "exponential"})
      .also({"gamma", "decay_rate"}).means("step: at each milestone. exponential: per epoch."),
    FIELD(learning_rate.power).above(0, 100).only_with("learning_rate.schedule", {"polynomial"})
      .means("1: linear. 2: as MLPerf."),
    FIELD(learning_rate.end).from(0, 1e6).only_with("learning_rate.schedule", {"polynomial", "cosine"})
      .also({"min_lr", "eta_min"}).means("The rate that the decay arrives at; at most the peak."),

    FIELD(noise.every_steps).how_it_runs().unit("steps").from(0, step_limit).also({"gns", "noise_scale"})
      .means("How often it is measured. Changes no weight, unless batch.follow_noise follows it. 0: off."),
    FIELD(noise.small_batch).how_it_runs().unit("samples").from(0, int32_limit)
      .means("The batch whose gradient is compared with the global batch's: a multiple of batch.worker that divides "
             "each rank's share of batch.global. The value then does not depend on the ranks, and passes are this long or a "
             "part of it. 0: what a rank does in one pass; one rank that does the whole batch in one pass measures nothing."),
    FIELD(noise.half_life).how_it_runs().unit("samples").from(0, 1e15)
      .means("After so many samples a step counts half in the averages. 0: 100 x batch.global. The averages then reach over "
             "about 290 steps: 17 times less scatter than a step has, and still many half-lives in a run of 2,500 steps."),

    FIELD(noise.groups).how_it_runs().words({"none", "kind", "tensor"})
      .means("What has a noise scale of its own, beside the whole gradient's, in the run's summary and run.json: each kind "
             "of parameter (weight, bias, norm; in metrics.jsonl, too) or each tensor. Changes no weight but in rounding, "
             "where training follows the noise."),

    FIELD(branch.from).how_it_runs().also({"init_from", "initial_checkpoint", "pretrained", "load"})
      .means("A checkpoint of another run, as a file or as RUN@POINT, the folder and a place that checkpoint.keep_at has: "
             "results/names/parent@2, results/names/parent@500steps. This run goes on from its weights, optimizer "
             "state and place in the data, into a folder of its own. Model, data, seed and optimizer are that run's. "
             "Once it has a checkpoint of its own, it resumes from that. \"\": the run begins by itself."),
    FIELD(branch.batch_factor).above(0, 1e6)
      .means("k: how many times the batch of that run batch.global is (and batch.largest, where it is given)."),
    FIELD(branch.rate_factor).above(0, 1e6)
      .means("The learning rate is that run's, as a function of the samples seen, times this: sqrt k for Adam, k for SGD "
             "(Merrill et al. 2025)."),
    FIELD(branch.samples).unit("samples").from(0, 1e15)
      .means("It ends after so many of its own, in whole steps, rounded up; stop.epochs and stop.steps then only say how long "
             "the learning rate's schedule is. 0: it ends as stop.* says, where that run would."),

    FIELD(stop.epochs).unit("epochs").from(0, epoch_limit).also({"epochs", "num_epochs", "max_epochs"})
      .means("Passes over the training data, a fraction allowed. 0: no such limit."),
    FIELD(stop.steps).unit("steps").from(0, step_limit).also({"steps", "max_steps", "iterations"})
      .means("Optimizer steps. 0: no such limit."),
    FIELD(stop.seconds).unit("seconds").from(0, second_limit).also({"time", "max_seconds"})
      .means("Time of the run, the earlier parts of a resumed one included. 0: no such limit."),
    FIELD(stop.target_metric).words({"", "validation_loss", "validation_accuracy"}).also({"target", "metric"})
      .means("Stop when an evaluation reaches target_value: a loss at or below it, an accuracy at or above it. "
             "\"\": off."),
    FIELD(stop.target_value).from(0, 1e6)
      .means("Loss in nats, or accuracy as a share (0.75 for 75 %). Above 0 with a target_metric, 0 without."),

    FIELD(evaluate.every_epochs).how_it_runs().unit("epochs").from(0, epoch_limit).means("0: off."),
    FIELD(evaluate.offset_epochs).how_it_runs().unit("epochs").from(0, epoch_limit)
      .means("The first evaluation of every_epochs is after so many, the others every_epochs apart from it (MLPerf: "
             "every 4, the first after 1, 2, 3 or 4). 0: after every_epochs."),
    FIELD(evaluate.every_steps).how_it_runs().unit("steps").from(0, step_limit).means("Beside every_epochs. 0: off."),
    FIELD(evaluate.norm_statistics).words({"running", "recomputed", "last"})
      .means("What batch norm normalises by in an evaluation, and in a checkpoint's weights. running: averages over the "
             "steps (model.norm_momentum). recomputed: measured by the weights of that moment on norm_samples training "
             "samples (Goyal et al. 2017; Wu and Johnson 2021). last: the last step's, the mean over all virtual workers "
             "of their means and variances (Akiba et al. 2017)."),
    FIELD(evaluate.norm_samples).unit("samples").from(0, 1e12).only_with("evaluate.norm_statistics", {"recomputed"})
      .means("recomputed needs it: the first so many of the first epoch's order, with the augmentation of training but "
             "without dropout, in groups of batch.worker, which divides it. Mean and variance are those over all of them."),

    FIELD(checkpoint.every_epochs).how_it_runs().unit("epochs").from(0, epoch_limit).means("0: off."),
    FIELD(checkpoint.every_steps).how_it_runs().unit("steps").from(0, step_limit).means("Beside the others. 0: off."),
    FIELD(checkpoint.every_seconds).how_it_runs().unit("seconds").from(0, second_limit)
      .means("By rank 0's clock, beside the others. 0: off."),
    FIELD(checkpoint.keep).how_it_runs().unit("files").from(1, 1e6).means("How many stay: the newest."),
    FIELD(checkpoint.keep_at).how_it_runs().also({"keep_every", "save_at", "milestones_to_keep"})
      .means("One is written and stays for ever at the first step at or after each of these places: epochs as numbers, or "
             "steps: [0.5, 2, 500 steps]. 0: the initial weights."),
    FIELD(checkpoint.best).how_it_runs().means("Whether the one with the lowest validation loss stays too."),

    FIELD(machine.device).how_it_runs().words({"auto", "cpu", "cuda"}).also({"gpu", "cuda"})
      .means("auto: the GPU that this rank is given, where there is one."),
    FIELD(machine.graphs).how_it_runs().also({"cuda_graphs"})
      .means("GPU: whether a step's kernels are recorded once and replayed."),
    FIELD(machine.search_seconds).how_it_runs().unit("seconds").from(0, second_limit)
      .means("GPU: how long a start may time ways of joining kernels that machine.plan_cache does not know. 0: the ones that move the fewest bytes."),
    FIELD(machine.plan_cache).how_it_runs()
      .means("GPU: folder that keeps what was found. \"\": ringtrain in $XDG_CACHE_HOME or ~/.cache."),

    FIELD(communication.library).how_it_runs().words({"auto", "nccl", "mpi"}).also({"comm"})
      .means("GPU: what sums gradients. mpi goes through host memory and lets several ranks share a GPU. auto: nccl."),
    FIELD(communication.algorithm).how_it_runs().words({"auto", "ring", "tree", "halving", "hierarchical", "mpi"})
      .also({"allreduce", "all_reduce"})
      .means("How gradients are summed over the ranks. Between CPUs (MPI): ring, halving (recursive halving and doubling), "
             "hierarchical (within the nodes first), mpi (the library's own); auto: the fastest by the four keys below. "
             "Between GPUs (NCCL): ring, tree; auto: NCCL's own choice."),
    FIELD(communication.order).how_it_runs().words({"any", "fixed"}).also({"deterministic", "reproducible"})
      .means("In which order gradients are added. any: the fastest. fixed: in one binary tree over the passes of all "
             "ranks, so that losses, weights and checkpoints have the same bits on 1, 2, 4, 8 ... ranks of one kind of "
             "machine with the same run.threads. A pass is then batch.worker samples where batch.micro is 0. "
             "`ringtrain plan` prints what it costs."),
    FIELD(communication.gradient_type).words({"fp32", "bf16", "fp16"})
      .means("NCCL: type in which gradients travel; they are kept in fp32."),
    FIELD(communication.max_ctas).how_it_runs().unit("thread blocks").from(0, 1024)
      .means("NCCL: how much of the GPU it may take. 0: its own choice."),
    FIELD(communication.bucket_mib).how_it_runs().unit("MiB").from(0, 65536).also({"bucket", "bucket_cap_mb"})
      .means("Gradients are averaged over the ranks in ranges of this size, each as soon as it is complete. 0: 1 MiB "
             "between CPUs, 16 MiB between GPUs, and at least 4 KiB for each rank."),
    FIELD(communication.chunk_kib).how_it_runs().unit("KiB").from(1, 1048576).means("Size of one message of sums by MPI."),
    FIELD(communication.node_latency_us).how_it_runs().unit("microseconds").above(0, 1e6)
      .means("What a message between ranks of a node waits. `ringtrain bench comm` measures these four."),
    FIELD(communication.node_gb_s).how_it_runs().unit("GB/s").above(0, 1e6)
      .means("What a rank sends to another of its node per second."),
    FIELD(communication.network_latency_us).how_it_runs().unit("microseconds").above(0, 1e6)
      .means("What a message between nodes waits."),
    FIELD(communication.network_gb_s).how_it_runs().unit("GB/s").above(0, 1e6)
      .means("What a node sends to another per second."),
    FIELD(communication.timeout_seconds).how_it_runs().unit("seconds").above(0, second_limit).also({"timeout"})
      .means("A step that takes longer ends the job, after printing where every rank stands."),
    FIELD(communication.check_every_steps).how_it_runs().unit("steps").from(-1, step_limit)
      .also({"check_replicas", "desync", "checksum"})
      .means("How often the ranks compare checksums of what each of them has a copy of: weights, batch norm's running "
             "statistics, the optimizer's state where it is whole on every rank; replicas of a pipeline's stages and of "
             "servers' ranges. Before every checkpoint they compare, too. A difference ends the job with the name of the "
             "rank and its host. An error that comes before gradients are summed is the same on all ranks and not seen. "
             "-1: about once a minute. 0: never."),

    FIELD(parallel.kind).how_it_runs().words({"ring", "server", "pipeline"}).also({"strategy", "distributed"})
      .means("ring: every rank has all weights, and gradients are summed. server: parameter servers update the "
             "weights. In step with all workers they are the first ranks, which work, too; asynchronous ones and those with "
             "backup workers have ranks of their own. pipeline: consecutive parts of the model lie on different ranks."),
    FIELD(parallel.shard_state).how_it_runs().only_with("parallel.kind", {"ring"}).also({"zero", "zero_stage"})
      .means("Each rank keeps the optimizer's state of a part of the weights and updates that part (ZeRO stage 1, "
             "Rajbhandari et al. 2020). The weights stay whole on every rank."),
    FIELD(parallel.servers).how_it_runs().unit("ranks").from(1, 65536).only_with("parallel.kind", {"server"})
      .means("Ranks that hold the weights and the optimizer's state, in ranges of equal size: the first ones."),
    FIELD(parallel.mode).words({"sync", "async"}).only_with("parallel.kind", {"server"})
      .means("sync: a step waits for the gradients of all workers. async: each worker's share of a batch is an update of "
             "its own, applied when it arrives."),
    FIELD(parallel.max_staleness).unit("steps").from(-1, step_limit).only_with("parallel.mode", {"async"})
      .means("How many steps a worker may be ahead of the slowest one (Ho et al. 2013). -1: any number."),
    FIELD(parallel.staleness_rate).words({"none", "inverse"}).only_with("parallel.mode", {"async"})
      .means("inverse: the rate of an update is divided by its staleness (Zhang et al. 2016)."),
    FIELD(parallel.replay).how_it_runs().only_with("parallel.mode", {"async"})
      .means("A recorded order of arrival (arrivals.csv of a run) that is applied again, so that the run is reproducible."),
    FIELD(parallel.backup_workers).unit("workers").from(0, 65536).only_with("parallel.kind", {"server"})
      .means("sync: a step takes the gradients that arrive first and drops so many late ones (Chen et al. 2016)."),
    FIELD(parallel.replicas).how_it_runs().unit("servers").from(1, 2).only_with("parallel.kind", {"server"})
      .means("Servers that hold each range, so that the job survives one that dies. 2 needs "
             "parallel.mode async and MPI with fault tolerance (ULFM): Open MPI 5, started with mpirun --with-ft ulfm."),
    FIELD(parallel.stages).how_it_runs().unit("stages").from(2, 1024).only_with("parallel.kind", {"pipeline"})
      .also({"pipeline_stages", "pp"}).means("Consecutive parts of the model, on as many ranks."),
    FIELD(parallel.cuts).how_it_runs().only_with("parallel.kind", {"pipeline"})
      .means("auto: stages of nearly equal time. Otherwise the first layer of every stage but the first: [layer2.0, layer3.0]."),
    FIELD(parallel.schedule).how_it_runs().words({"gpipe", "1f1b"}).only_with("parallel.kind", {"pipeline"})
      .means("gpipe: all forward passes of a step, then all backward passes (Huang et al. 2019). 1f1b: one forward, one "
             "backward (Narayanan et al. 2019), which keeps fewer micro-batches in memory."),

    FIELD(memory.recompute).how_it_runs().also({"checkpointing", "gradient_checkpointing", "remat"})
      .means("Blocks whose activations are computed again in the backward pass instead of being kept (Chen et al. 2016): "
             "none, auto (the cheapest ones that memory.limit_gib asks for) or names such as layer1.0, features.3, "
             "lstm.l0; layer1 stands for all of layer1. Changes no bit of the result; `plan` shows what it costs."),
    FIELD(memory.offload).how_it_runs()
      .means("GPU: activations of early layers wait for the backward pass in the host's memory, as many as the link to "
             "the host carries out and back beside the passes; more, which then costs time, where memory.limit_gib asks "
             "for it. Changes no bit of the result; `plan` shows what travels."),
    FIELD(memory.limit_gib).how_it_runs().unit("GiB").from(0, 1e6)
      .means("What each rank may take, of its GPU's memory or on a CPU in all. batch.micro: 0 is then the largest that "
             "fits. 0: the memory of its GPU; on CPUs no limit."),

    FIELD(test.slow_rank).how_it_runs().from(-1, 1e6)
      .means("For experiments with a slow rank: which one, counted from 0. It sleeps at the beginning of its steps, which "
             "changes no number of theirs. -1: none."),
    FIELD(test.slow_seconds).how_it_runs().unit("seconds").from(0, second_limit)
      .means("How long the slow rank sleeps in each of its steps."),
    FIELD(test.flip_bit_rank).how_it_runs().from(-1, 1e6)
      .means("To see communication.check_every_steps find an error: the rank whose memory fails, counted from 0. -1: none."),
    FIELD(test.flip_bit_step).how_it_runs().unit("steps").from(0, step_limit)
      .means("After this step one bit of that rank's copy flips."),
    FIELD(test.flip_bit_in).how_it_runs()
      .means("The tensor that it flips in, by its name in checkpoints: weights/fc.weight, optimizer/momentum/fc.weight."),

    FIELD(run.dir).how_it_runs().also({"output", "output_dir", "out", "directory"})
      .means("The run's own folder. \"\": results/<name>/<id>."),
    FIELD(run.id).how_it_runs().folder_name()
      .means("The folder's name in results/<name>, so not together with run.dir. \"\": the time of the start."),
    FIELD(run.log_every_steps).how_it_runs().unit("steps").from(0, step_limit).also({"print_every", "log_interval"})
      .means("A line this often when the output is not a terminal. 0: about twenty per epoch."),
    FIELD(run.threads).how_it_runs().unit("threads").from(0, 4096).also({"num_threads"})
      .means("Threads of each rank. 0: its share of the processors that it may use."),
  };
}
// clang-format on
#undef FIELD

}  // namespace

const std::vector<Field>& schema() {
  static const std::vector<Field> fields = make_schema();
  return fields;
}

const Field* find_field(std::string_view key) {
  const auto found =
      std::find_if(schema().begin(), schema().end(), [key](const Field& field) { return field.key == key; });
  return found == schema().end() ? nullptr : &*found;
}

std::string_view section_of(std::string_view key) {
  const auto dot = key.find('.');
  return dot == std::string_view::npos ? std::string_view() : key.substr(0, dot);
}

std::string_view leaf_of(std::string_view key) {
  const auto dot = key.find('.');
  return dot == std::string_view::npos ? key : key.substr(dot + 1);
}

bool is_list(const Field& field) {
  Experiment experiment;
  const Member member = field.member(experiment);
  return std::holds_alternative<std::vector<double>*>(member) ||
         std::holds_alternative<std::vector<std::string>*>(member) ||
         std::holds_alternative<std::vector<EpochFactor>*>(member) ||
         std::holds_alternative<std::vector<RunPoint>*>(member);
}

const std::vector<std::string_view>& sections() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> list;
    for (const Field& field : schema()) {
      const std::string_view section = section_of(field.key);
      if (!section.empty() && (list.empty() || list.back() != section)) list.push_back(section);
    }
    return list;
  }();
  return names;
}

bool is_folder_name(std::string_view text) {
  return !text.empty() && text.size() <= 100 && text[0] != '.' &&
         text.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") ==
             std::string_view::npos;
}

}  // namespace ringtrain
