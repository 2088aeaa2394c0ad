#include "config/schema.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "config/schema_text.h"

namespace ringtrain {
namespace {

constexpr double int32_limit = 2147483647, step_limit = 1e12, epoch_limit = 1e6, second_limit = 1e9;

// The key and the member come from one text, so they cannot differ.
#define FIELD(path) Field(#path, [](Experiment& experiment) -> Member { return &experiment.path; })

// clang-format off
std::vector<Field> make_schema() {
  return {
    FIELD(name).how_it_runs().required().folder_name().also({"experiment", "title"})
      .means("What the experiment is called; its runs live in results/<name>/."),
    FIELD(seed).also({"random_seed"})
      .means("The seed decides the order of samples, the initial weights and dropout. The number of ranks does not change them."),
    FIELD(precision).words({"fp32", "tf32", "bf16", "fp16"}).also({"dtype", "amp"})
      .means("Number type of the matrix products. bf16 needs a processor that supports it. tf32 and fp16 need a GPU. Weights and "
             "optimizer state are always fp32."),

    FIELD(model.kind).words({"char_lstm", "resnet", "alexnet", "cnn", "mlp"}).also({"arch", "architecture"})
      .means("char_lstm predicts the next character. resnet: He et al. 2015. alexnet: Krizhevsky 2014. cnn: convolutions with "
             "pooling, for small images. mlp: dense layers on the pixels."),
    FIELD(model.hidden).unit("units").from(1, 65536).only_with("model.kind", {"char_lstm"})
      .also({"hidden_size", "rnn_size", "units"}).means("Width of every LSTM layer."),
    FIELD(model.layers).unit("layers").from(1, 64).only_with("model.kind", {"char_lstm"}).also({"num_layers"})
      .means("LSTM layers on top of each other."),
    FIELD(model.dropout).fraction().only_with("model.kind", {"char_lstm", "alexnet", "cnn", "mlp"}).also({"drop"})
      .means("Probability that a value is set to zero in training. Dropout acts between LSTM layers, before AlexNet's hidden "
             "dense layers (0.5 in the paper), and after each hidden dense layer of a cnn or an mlp. With one LSTM layer, or "
             "without hidden dense layers, it has no effect."),
    FIELD(model.depth).unit("layers").from(8, 152).only_with("model.kind", {"resnet"})
      .means("The number of layers. 18, 34, 50, 101 or 152: four stages (He et al. 2015, table 1). 8, 20, 32, 44, 56 or 110: the "
             "ResNets for CIFAR (section 4.2), three stages of 1, 3, 5, 7, 9 or 18 basic blocks. They need stem: small, and have "
             "width: 16 in the paper. The paper pads the shortcuts to smaller maps (option A). Here they are projections, as in "
             "the other depths."),
    FIELD(model.width).unit("channels").from(16, 4096).only_with("model.kind", {"resnet"})
      .means("Channels of the first stage, a multiple of 16. Every later stage has twice as many as the one before. The paper has "
             "64."),
    FIELD(model.channels).unit("channels").from(1, 65536).only_with("model.kind", {"cnn"}).also({"filters"})
      .means("Output channels of each convolution. Each convolution keeps height and width, and 2 x 2 max pooling follows it."),
    FIELD(model.kernel).unit("pixels").from(1, 31).only_with("model.kind", {"cnn"}).also({"kernel_size"})
      .means("Height and width of the kernel of every convolution, an odd number."),
    FIELD(model.widths).unit("units").from(1, 1048576).only_with("model.kind", {"cnn", "mlp"}).also({"hidden_sizes"})
      .means("Units of each hidden dense layer before the classifier. An mlp has at least one, and its first one is a multiple of 16."),
    FIELD(model.stem).words({"imagenet", "small"}).only_with("model.kind", {"resnet"})
      .means("imagenet: 7 x 7 convolution with stride 2, then max pooling. small: 3 x 3 with stride 1, for images of 32 "
             "to 64 pixels."),
    FIELD(model.zero_gamma).only_with("model.kind", {"resnet"}).also({"zero_init_residual"})
      .means("Whether the last norm of every block starts with gamma = 0 instead of 1 (Goyal et al. 2017, section 5.1). Without "
             "norms there is no gamma."),
    FIELD(model.stride_in).words({"3x3", "1x1"}).only_with("model.kind", {"resnet"})
      .means("Which convolution of a bottleneck has the stride. 3x3: ResNet version 1.5 (fb.resnet.torch, Goyal, "
             "MLPerf, torchvision). 1x1: the first convolution, ResNet version 1 (He et al. 2015, You et al. 2017). "
             "Depths 18 and 34 have no bottlenecks."),
    FIELD(model.normalization).off_by_default().words({"auto", "batch", "group", "none"})
      .only_with("model.kind", {"resnet", "cnn", "mlp"}).also({"norm_layer", "norm_type"})
      .means("What normalises the result of every convolution of a resnet or a cnn, and of every hidden layer of an mlp, before "
             "the ReLU. batch: batch norm, over the samples of a virtual worker (Ioffe and Szegedy 2015). group: group norm, over "
             "norm_groups groups of channels of each sample by itself (Wu and He 2018), in training and evaluation alike. The "
             "result of a sample then does not depend on the other samples, and a batch may be 1. none: no norm. auto: batch for "
             "a resnet, none for a cnn or an mlp. Layers that a norm follows have no bias."),
    FIELD(model.norm_groups).unit("groups").from(1, 65536).only_with("model.normalization", {"group"})
      .also({"num_groups", "gn_groups"})
      .means("Group norm: groups of channels, 32 in the paper. It must divide the channels of every layer that has a norm. In a "
             "resnet, these are the divisors of model.width. 1: all channels together, as in layer norm."),
    FIELD(model.norm_momentum).above(0, 1).only_with("model.kind", {"resnet", "alexnet", "cnn", "mlp"}).also({"bn_momentum"})
      .means("Weight of a step's statistics in batch norm's running statistics. A step's statistics are the mean over all virtual "
             "workers. 0.1 corresponds to the 0.9 of Goyal et al."),
    FIELD(model.norm).only_with("model.kind", {"alexnet"}).also({"batch_norm", "bn"})
      .means("true: batch norm follows every convolution, and convolutions have no bias. This is Ginsburg's AlexNet-BN, "
             "on which You et al. 2017 tried LARS."),
    FIELD(model.initial).words({"he", "truncated_normal", "uniform"}).also({"init", "initializer"})
      .means("The initial weights. he: convolutions are drawn from N(0, 2 / fan out) (He et al. 2015), and ResNet's last layer "
             "from N(0, 0.01^2). Other dense layers and the LSTM start as in PyTorch. truncated_normal (images only): "
             "weights have the variance 2 / fan in, draws beyond 2 deviations are repeated, and biases are 0. ResNet's last "
             "layer has the deviation 0.01. This is TensorFlow's he_normal and an option of MLPerf. uniform: weights and "
             "biases lie in +-initial_range. Norms start with gamma 1 (see zero_gamma) and beta 0."),
    FIELD(model.initial_range).from(0, 100).only_with("model.initial", {"uniform"}).also({"init_range"})
      .means("Bound of the initial weights. char-rnn uses 0.08. 0: the default of char_lstm, 1 / sqrt(hidden)."),
    FIELD(model.forget_bias).from(-100, 100).only_with("model.kind", {"char_lstm"})
      .means("Initial value of the forget gates' bias b_ih. char-rnn uses 1. The second bias b_hh, which is added to "
             "b_ih, starts like all other biases. 0: no special value; b_ih starts like all other biases."),

    FIELD(data.train).how_it_runs().path().required().also({"dataset", "train_data"})
      .means("Prefix of the training shards, <prefix>-00000-of-00002.h5 and so on, or one file that ends in .h5. A relative path "
             "begins in the folder where the command runs. In all paths of an experiment, ~/ is the home folder, and $NAME or "
             "${NAME} is an environment variable."),
    FIELD(data.validation).how_it_runs().path().also({"valid", "val", "test"})
      .means("Prefix of the validation shards. \"\": no evaluation."),
    FIELD(data.order).only_for("running text").words({"windows", "streams"})
      .means("Running text only. windows: the text is cut into samples, which have a new random order every epoch. streams: every "
             "row of the global batch reads its own part of the text from start to end and keeps its hidden state."),
    FIELD(data.sequence).only_for("running text").unit("characters").from(1, 1e6).also({"seq_length", "sequence_length"})
      .means("Running text only: characters per sample. For names, the data set sets the length."),
    FIELD(data.blanks).only_for("names").words({"counted", "masked"}).also({"padding"})
      .means("Names only. Short names are padded with blanks. counted: blanks count in the losses. masked: they do not."),
    FIELD(data.image_size).only_for("images").unit("pixels").from(8, 4096).also({"img_size", "crop_size", "resolution"})
      .means("Images only: side of the square that the model sees."),
    FIELD(data.channels).off_by_default().only_for("images").from(1, 3)
      .means("Images only: the channels that the model sees. 3: colours; a grey image is repeated three times, so that the weights "
             "of the first layer act thrice. 1: grey, for networks that were published for MNIST; colours are converted after the "
             "cut, as Pillow's convert('L') does."),
    FIELD(data.resize).only_for("images").unit("pixels").from(0, 8192)
      .means("Images only. Used in evaluation, and in training without random_resized_crop. The short side is resized to this "
             "length. Then the central square is cut out, as in torchvision. 0: no resizing before the cut."),
    FIELD(data.augmentation).only_for("images").words({"random_resized_crop", "pad_crop", "none"}).also({"augment"})
      .means("Images only, training. random_resized_crop: a random part, resized (Szegedy et al. 2014, as torchvision). "
             "pad_crop: the image is padded, and a random square is cut out, as for CIFAR. none: images are prepared as "
             "in evaluation."),
    FIELD(data.crop_area).only_for("images").above(0, 1).only_with("data.augmentation", {"random_resized_crop"}).also({"scale"})
      .means("The random part covers between these two shares of the image's area."),
    FIELD(data.crop_ratio).only_for("images").above(0, 100).only_with("data.augmentation", {"random_resized_crop"}).also({"ratio"})
      .means("Smallest and largest width / height of the part. The ratio is drawn log-uniformly."),
    FIELD(data.pad).only_for("images").unit("pixels").from(0, 1024).only_with("data.augmentation", {"pad_crop"}).means("Black pixels added on all "
             "sides."),
    FIELD(data.flip).only_for("images").means("Images only: whether each training image is mirrored with probability 1/2, drawn anew in every epoch."),
    FIELD(data.mean).only_for("images").from(0, 1).means("Images only: the mean that is subtracted from pixels / 255, per channel. []: the mean of "
             "the data set."),
    FIELD(data.std).only_for("images").above(0, 1)
      .means("Images only: the standard deviation by which pixels / 255 are divided, per channel. []: the standard "
             "deviation of the data set."),
    FIELD(data.train_samples).how_it_runs().unit("samples").from(0, 1e12)
      .means("Samples that the training set must have. Any other number is an error. With data.classes stated too, `plan` works "
             "on a machine without the images. 0: not stated."),
    FIELD(data.validation_samples).how_it_runs().unit("samples").from(0, 1e12).means("Samples that the validation set must have. "
             "0: not stated."),
    FIELD(data.classes).only_for("images").unit("classes").from(0, 1e6).also({"num_classes"}).means("Images only: classes that the data sets must "
             "have. 0: not stated."),
    FIELD(data.share).off_by_default().above(0, 1).also({"subset", "fraction", "data_fraction"})
      .means("The part of the training set that is used, to study how results depend on the amount of data. The seed draws it, "
             "and it is nested: all samples of a share of 0.25 are in the share of 0.5. Images: the samples of each class "
             "are drawn in proportion, to within one of each. Names: records are drawn. Running text: one contiguous window of the "
             "text, whose place is drawn. An epoch is one pass over the part, and everything that counts epochs or samples of an "
             "epoch counts those of the part. Validation data stay whole. 1: the whole training set."),
    FIELD(data.last_batch).words({"drop", "smaller"}).also({"drop_last"})
      .means("What happens to the last samples of an epoch when they do not fill a batch. drop: they are left out. smaller: they "
             "become a smaller batch (MLPerf, JAX). Every sample then counts once per epoch, and the number of steps is "
             "rounded up. Loss, gradient, learning rate and noise scale use the true size of this batch. With images, its other "
             "rows repeat the epoch's first images as padding, which counts in batch norm's statistics only."),
    FIELD(data.loader_threads).how_it_runs().unit("threads").from(1, 256).also({"num_workers"})
      .means("Threads of each rank that read samples in the background."),
    FIELD(data.reads).only_for("images").how_it_runs().unit("records").from(1, 256)
      .means("Images only: records that each rank reads at the same time. More reads hide the latency of a network file system."),
    FIELD(data.prefetch).how_it_runs().unit("micro-batches").from(1, 1024).means("Micro-batches that are kept ready ahead of "
             "training."),

    FIELD(batch.global).unit("samples").required().from(1, int32_limit).also({"batch_size", "global_batch_size"})
      .means("Samples per optimizer step, whatever the number of ranks."),
    FIELD(batch.worker).unit("samples").required().from(1, int32_limit).also({"local_batch", "batch_per_gpu", "ghost_batch"})
      .means("Samples per virtual worker. Batch norm computes its statistics over one virtual worker (ghost batch norm, Hoffer et "
             "al. 2017). The key must divide "
             "batch.global. The number of ranks must divide the number of workers, batch.global / batch.worker. With batch "
             "norm, a power of two of ranks on one node may share each worker. A pass is then one rank's part of one worker."),
    FIELD(batch.micro).how_it_runs().unit("samples").from(0, int32_limit).also({"micro_batch", "micro_batch_size"})
      .means("Samples per device pass. The key changes speed and memory, not the result. It must divide each rank's share of "
             "batch.global. 0: the backend chooses."),
    FIELD(batch.schedule).above(0, 1e6)
      .means("[epoch, factor] pairs. From that epoch on, the batch is factor x batch.global, in more micro-batches (Smith et al. "
             "2018). Example: [[60, 5], [120, 25], [160, 125]]. The learning rate stays the one for batch.global. The ranks "
             "must divide the workers of every batch. Schedules still count epochs; stop.steps counts updates."),
    FIELD(batch.largest).unit("samples").from(0, int32_limit)
      .means("The largest batch, for batch.schedule and batch.follow_noise. If the schedule asks for a larger batch, the learning "
             "rate is divided by the ratio of the two batches instead, which is the rule for SGD (Smith et al. 2018). 0: no limit."),
    FIELD(batch.follow_noise).from(0, 1e6)
      .means("The multiple of the noise scale at which the batch aims. The batch doubles, up to batch.largest, after it has been "
             "below this multiple of noise_scale_low for batch.patience samples. noise_scale_low is the lower end of the noise "
             "scale's 95 % interval. The batch never shrinks, and the learning rate stays the one for batch.global. The key "
             "needs noise.small_batch, so that the number of ranks does not change the result. 0: off."),
    FIELD(batch.patience).unit("samples").from(0, 1e15)
      .means("For batch.follow_noise: how many samples in a row the batch must be too small before it doubles. 0: noise.half_life."),

    FIELD(loss.label_smoothing).fraction().also({"smoothing"})
      .means("Images only: training targets are (1 - s) x the label + s / classes (Szegedy et al. 2016). Evaluation "
             "uses the label alone. 0: off."),

    FIELD(loss_scale.initial).above(0, 0x1p24).only_with("precision", {"fp16"})
      .means("The factor that multiplies gradients in the backward pass at the start of the run (Micikevicius et al. 2018)."),
    FIELD(loss_scale.growth_steps).unit("steps").from(0, step_limit).only_with("precision", {"fp16"})
      .means("The loss scale is doubled after this many updates in a row without overflow. At an overflow the scale is "
             "halved and the update is skipped. 0: the scale stays constant, and an overflow ends the run."),

    FIELD(optimizer.kind).words({"sgd", "lars", "adam", "adamw", "lamb", "rmsprop", "rmsprop_to_sgd", "muon"})
      .means("sgd: u = momentum u + g, w -= lr u. lars: SGD with a trust ratio for each tensor (You et al. 2017). adam: "
             "weight decay is added to the gradient. adamw: weight decay acts on the weights, w -= lr weight_decay w. "
             "lamb: AdamW's direction with a trust ratio |w| / |direction| for each tensor (You et al. 2020). rmsprop: "
             "w -= lr g / (sqrt v + epsilon), v the mean of squared gradients. rmsprop_to_sgd: RMSprop that turns into "
             "SGD with momentum (Akiba et al. 2017). muon: the Nesterov momentum of each weight matrix between the "
             "first and the last layer is made orthogonal, and the matrix moves by it (Jordan 2024, as "
             "torch.optim.Muon). A convolution counts as one matrix, [out, in x kernel x kernel]. An LSTM's gates count "
             "as one matrix, [4 hidden, input]."),
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
    FIELD(optimizer.weight_decay).from(0, 1000).also({"wd", "l2"})
      .means("The strength of weight decay. optimizer.kind says how it acts. 0: off."),
    FIELD(optimizer.weight_decay_by).off_by_default().words({"step", "sample"}).only_with("optimizer.kind", {"adamw", "muon"})
      .means("What weight_decay stays the same for when the batch changes. step: each step decays the weights by rate x "
             "weight_decay. sample: weight_decay is the one of a batch of learning_rate.base_batch (0: batch.global) at the rate "
             "learning_rate.base, and a step of B samples uses weight_decay x (B / base_batch) x (base / peak rate). The decay's "
             "time scale B / (rate x decay), in samples, then does not depend on the batch (Wang and Aitchison 2024; Bergsma et al. 2025). "
             "batch.schedule, batch.follow_noise and branches change B. branch.rate_factor, and a batch.largest that divides the "
             "rate, count in the peak rate."),
    FIELD(optimizer.no_decay).words({"norm", "bias"}).also({"exclude_from_weight_decay"})
      .means("Parameters that weight decay leaves alone. norm: gamma and beta of batch norm (Goyal et al. 2017). bias: of "
             "dense, convolution and LSTM layers. []: it acts on everything, as in torchvision."),
    FIELD(optimizer.trust_coefficient).above(0, 1).only_with("optimizer.kind", {"lars"}).also({"eta", "eeta"})
      .means("The rate of a tensor is multiplied by its trust ratio, trust_coefficient |w| / (|g| + weight_decay |w|). A tensor "
             "of zeros has the trust ratio 1."),
    FIELD(optimizer.lars_form).words({"paper", "mlperf"}).only_with("optimizer.kind", {"lars"})
      .means("Both forms compute v = momentum v + lr ratio (g + weight_decay w), w -= v. paper: nothing else. mlperf: "
             "parameters in no_trust do not decay, whatever no_decay says, and a gradient of zeros has the ratio 1."),
    FIELD(optimizer.no_trust).words({"norm", "bias"}).only_with("optimizer.kind", {"lars"})
      .means("Kinds of parameters without a trust ratio. They use the full learning rate, as in MLPerf. []: all parameters have a "
             "trust ratio, as in the paper."),
    FIELD(optimizer.trust_undecayed).only_with("optimizer.kind", {"lamb"}).also({"use_nvlamb"})
      .means("true: parameters without weight decay have a trust ratio, too. false: they move as in Adam."),
    FIELD(optimizer.transition_center).unit("epochs").from(0, epoch_limit)
      .only_with("optimizer.kind", {"rmsprop_to_sgd"})
      .means("The epoch at which RMSprop and SGD have the same weight. Akiba et al. call it b_c."),
    FIELD(optimizer.transition_length).unit("epochs").above(0, epoch_limit)
      .only_with("optimizer.kind", {"rmsprop_to_sgd"})
      .means("Length of the transition. Akiba et al. call it b_p. SGD's share at epoch e is exp(2 (e - center) / length) / 2 "
             "before the center. After the center it is 1/2 + (e - center) / length, at most 1."),
    FIELD(optimizer.transition_rate).from(0, 1e6).only_with("optimizer.kind", {"rmsprop_to_sgd"}).also({"lr_rmsprop"})
      .means("The learning rate of RMSprop, at every batch and epoch. learning_rate is that of SGD."),
    FIELD(optimizer.muon_rate).words({"original", "match_rms_adamw"}).only_with("optimizer.kind", {"muon"})
      .also({"adjust_lr_fn"})
      .means("The factor of a matrix's learning rate. original: sqrt(max(1, rows / columns)). match_rms_adamw: 0.2 sqrt(max(rows, "
             "columns)). Learning rates and weight decays of AdamW then work for Muon (Liu et al. 2025)."),
    FIELD(optimizer.other_kind).words({"adamw", "sgd"}).only_with("optimizer.kind", {"muon"})
      .means("The optimizer of norms, of biases, and of the weights of the first and last layer. adamw uses beta1, beta2 and "
             "epsilon. sgd uses momentum and adds weight decay to the gradient."),
    FIELD(optimizer.other_rate).above(0, 1e6).only_with("optimizer.kind", {"muon"})
      .means("The learning rate of optimizer.other_kind is the run's learning rate x other_rate."),
    FIELD(optimizer.schedule_free).only_with("optimizer.kind", {"sgd", "adamw"})
      .means("Uses an average of the weights instead of a schedule (Defazio et al. 2024). The weights z take the steps. The "
             "weights x are the average of z. Each z is weighted by the square of the learning rate, so that warm-up counts "
             "less. The gradient is computed at y = (1 - b) z + b x, where b is momentum (sgd) or beta1 (adamw). x is "
             "evaluated, saved as the weights, and exported. Weight decay acts at y. The key needs learning_rate.schedule: "
             "constant (warm-up is allowed). With batch norm it also needs evaluate.norm_statistics: recomputed."),
    FIELD(optimizer.adascale).only_with("optimizer.kind", {"sgd"})
      .also({"ada_scale"})
      .means("AdaScale SGD (Johnson et al. 2020). The learning rate is multiplied by a gain r, which is computed from the "
             "gradients' noise. r lies between 1 and S = batch.global / learning_rate.base_batch. A step counts as r steps of "
             "base_batch. The schedule, warm-up and stop.epochs count these steps: an epoch has (the data set / base_batch) of "
             "them. stop.steps counts updates. Choose schedule and rate for base_batch; no warm-up is needed. If S is above 1, "
             "the key needs noise.small_batch, which then changes the result."),
    FIELD(optimizer.clip_norm).from(0, 1e9).also({"grad_clip", "max_grad_norm", "clip"})
      .means("If the norm of the gradient over all parameters is larger than this, the gradient is scaled down to it. 0: off."),
    FIELD(optimizer.clip_value).from(0, 1e9)
      .only_with("optimizer.kind", {"sgd", "adam", "adamw", "lamb", "rmsprop", "rmsprop_to_sgd"})
      .also({"grad_clamp", "clip_grad_value"})
      .means("Every element of the gradient is limited to +-clip_value, as in char-rnn. Use it instead of clip_norm. 0: "
             "off."),
    FIELD(optimizer.record_trust_every_steps).how_it_runs().unit("steps").from(0, step_limit)
      .only_with("optimizer.kind", {"lars", "lamb"})
      .means("How often metrics.jsonl gets trust_ratios, the trust ratio of every tensor that has one. 0: off."),
    FIELD(optimizer.half_life.momentum).off_by_default().instead_of("optimizer.momentum").unit("samples").from(0, 1e15)
      .only_with("optimizer.kind", {"sgd", "lars", "rmsprop_to_sgd", "muon"})
      .means("Takes the place of optimizer.momentum. sgd, lars and rmsprop_to_sgd: a gradient moves the weights by the rate / (1 - "
             "momentum) in all. At k times the batch the momentum m becomes m^k, so the movement per sample stays the same "
             "if the rate is multiplied by k (1 - m^k) / (1 - m), not by k. 0: not given."),
    FIELD(optimizer.half_life.beta1).off_by_default().instead_of("optimizer.beta1").unit("samples").from(0, 1e15)
      .only_with("optimizer.kind", {"adam", "adamw", "lamb", "muon"})
      .means("Takes the place of optimizer.beta1. 0: not given."),
    FIELD(optimizer.half_life.beta2).off_by_default().instead_of("optimizer.beta2").unit("samples").from(0, 1e15)
      .only_with("optimizer.kind", {"adam", "adamw", "lamb", "rmsprop", "rmsprop_to_sgd", "muon"})
      .means("Takes the place of optimizer.beta2. 0: not given."),

    FIELD(average.half_life).off_by_default().unit("samples").from(0, 1e15).also({"ema", "ema_decay", "model_ema"})
      .means("After this many samples, the weight of a step in the average of the weights is halved. A step of B samples moves "
             "the average by 1 - rho towards the weights, with rho = 2^(-B / half_life). 0: no average."),
    FIELD(average.from_epoch).off_by_default().unit("epochs").from(0, epoch_limit).also({"ema_start"})
      .means("The epoch at which averaging begins. Until then the average is the weights. It needs average.half_life."),
    FIELD(average.evaluate).off_by_default()
      .means("true: the average is evaluated, exported, and saved as the weights, also in best.h5. With batch norm, this needs "
             "evaluate.norm_statistics: recomputed. false: checkpoints have the average as optimizer/average. The weights are "
             "evaluated. The key has an effect with average.half_life only."),

    FIELD(learning_rate.base).above(0, 1e6).also({"lr", "learning_rate", "base_lr"})
      .means("The rate at a batch of base_batch samples."),
    FIELD(learning_rate.base_batch).unit("samples").from(0, int32_limit).also({"reference_batch"})
      .means("The batch for which base was chosen. Scaling uses k = batch.global / base_batch. With parallel.mode: async, an "
             "update has the samples of one worker, and k is their number / base_batch. Every scaling except none needs "
             "this key. 0: not stated."),
    FIELD(learning_rate.scaling).words({"none", "linear", "sqrt", "legw", "adam_sde"})
      .means("The peak rate. none: base. linear: base x k (Goyal et al. 2017). sqrt: base x sqrt k (Krizhevsky 2014). "
             "legw: base x sqrt k, and warmup_epochs x k (You et al. 2019). adam_sde: base x sqrt k, and the optimizer has "
             "1 - k (1 - beta1), 1 - k (1 - beta2) and epsilon / sqrt k in place of beta1, beta2 and epsilon (Malladi et al. 2022). It "
             "is for adam, adamw and rmsprop, and needs k (1 - beta) < 1."),
    FIELD(learning_rate.warmup_epochs).unit("epochs").from(0, epoch_limit).also({"warmup"})
      .means("The rate grows with the samples seen, so by the same amount at every step of the same batch: warmup_from + "
             "(peak - warmup_from) t / T at the steps t = 0 ... T - 1, the peak at step T. 0: off."),
    FIELD(learning_rate.warmup_steps).unit("steps").from(0, step_limit).also({"warmup_iterations"})
      .means("Length of warm-up in steps, instead of warmup_epochs. legw does not change warmup_steps, because k x the epochs at "
             "k x the batch take the same number of steps. 0: off."),
    FIELD(learning_rate.warmup_from).words({"base", "zero"})
      .means("The rate at which warm-up starts. base: learning_rate.base before scaling (Goyal et al. 2017). If scaling "
             "is none, this is already the peak. zero: 0."),
    FIELD(learning_rate.schedule).words({"constant", "step", "polynomial", "cosine", "exponential", "points"})
      .also({"scheduler", "lr_policy"})
      .means("The rate after warm-up. constant: the peak. step: x factor at each milestone. polynomial: end + (peak - "
             "end) (1 - x)^power. cosine: end + (peak - end) (1 + cos(pi x)) / 2. x runs from 0 at the end of warm-up "
             "to 1 when the last step is done, so polynomial and cosine need stop.epochs or stop.steps. exponential: "
             "peak x factor^(epochs since the end of warm-up), changing at every step. points: lines between given "
             "points."),
    FIELD(learning_rate.milestones).unit("epochs").above(0, epoch_limit).only_with("learning_rate.schedule", {"step"})
      .means("The epochs at which the rate changes, in increasing order. They count from the start of training, warm-up "
             "included, and are rounded to the nearest step."),
    FIELD(learning_rate.points).from(0, 1e6).only_with("learning_rate.schedule", {"points"}).also({"lr_points"})
      .means("[epoch, factor] pairs: factors of the peak, joined by straight lines, constant before the first and after "
             "the last. Epochs count from the start of training (warm-up included) and are rounded to the nearest step. "
             "Two points at one epoch are a jump. [[0, 0], [2, 1], [16, 0]] is FFCV's ramp."),
    FIELD(learning_rate.every).words({"step", "epoch"}).also({"lr_update"})
      .means("How often the rate changes, warm-up included. epoch: all steps of an epoch have the rate of its first "
             "step. During warm-up they have the rate of the epoch's end: (e + 1) / warmup_epochs of the way in epoch e "
             "= 0, 1, ... With warmup_from: zero, the first epoch therefore trains, too (as in NVIDIA's "
             "DeepLearningExamples)."),
    FIELD(learning_rate.factor).above(0, 1000).only_with("learning_rate.schedule", {"step", "exponential"})
      .also({"gamma", "decay_rate"}).means("step: the rate is multiplied by this at each milestone. exponential: the rate is "
             "multiplied by this in every epoch."),
    FIELD(learning_rate.power).above(0, 100).only_with("learning_rate.schedule", {"polynomial"})
      .means("The power of the polynomial. 1: linear. 2: as in MLPerf."),
    FIELD(learning_rate.end).from(0, 1e6).only_with("learning_rate.schedule", {"polynomial", "cosine"})
      .also({"min_lr", "eta_min"}).means("The learning rate at the end of the decay, at most the peak."),

    FIELD(noise.every_steps).how_it_runs().unit("steps").from(0, step_limit).also({"gns", "noise_scale"})
      .means("How often the noise scale is measured. The key changes no weight, unless batch.follow_noise is used. 0: off."),
    FIELD(noise.small_batch).how_it_runs().unit("samples").from(0, int32_limit)
      .means("The small batch whose gradient is compared with the gradient of the global batch. It must be a multiple of "
             "batch.worker and must divide each rank's share of batch.global. The micro-batch must divide the small batch; "
             "batch.micro: 0 chooses one that does. The measured noise scale then does not depend on the number of ranks. "
             "0: the micro-batch of a rank. A single rank whose micro-batch is the whole batch then measures nothing."),
    FIELD(noise.half_life).how_it_runs().unit("samples").from(0, 1e15)
      .means("After this many samples, the weight of a step in the averages is halved. 0: 100 x batch.global. The "
             "averages then cover about 290 steps. A run of 2,500 steps still has 25 half-lives."),

    FIELD(noise.groups).how_it_runs().words({"none", "kind", "tensor"})
      .means("Groups of parameters whose noise scale is measured in addition to that of the whole gradient. kind: each "
             "kind of parameter (weight, bias, norm). tensor: each tensor. The results are in the run's summary and in "
             "run.json. metrics.jsonl has the results of kind only. The key changes no weight. If training follows the "
             "noise scale, the key may change rounding."),

    FIELD(branch.from).how_it_runs().path().also({"init_from", "initial_checkpoint", "pretrained", "load"})
      .means("A checkpoint of another run, from which this run continues. Write a file, or RUN@POINT: the other run's folder and "
             "a point of its checkpoint.keep_at, as in results/names/parent@2 or results/names/parent@500steps. This run "
             "begins with the weights, the optimizer state and the position in the data of that checkpoint. It writes into its "
             "own folder. Model, data, seed and optimizer must be those of the other run. A resumed branch uses its own newest "
             "checkpoint. \"\": not a branch."),
    FIELD(branch.batch_factor).above(0, 1e6)
      .means("The factor k between the two runs: batch.global (and batch.largest, if given) is k x that of the other run."),
    FIELD(branch.rate_factor).above(0, 1e6)
      .means("The learning rate is that of the other run after the same number of samples, times this factor. Use sqrt k for Adam "
             "and k for SGD (Merrill et al. 2025)."),
    FIELD(branch.samples).unit("samples").from(0, 1e15)
      .means("The branch ends after this many samples of its own, rounded up to whole steps. stop.epochs and stop.steps "
             "then only set the length of the learning rate's schedule. 0: stop.* alone ends the branch."),

    FIELD(stop.epochs).unit("epochs").from(0, epoch_limit).also({"epochs", "num_epochs", "max_epochs"})
      .means("The run ends after this many passes over the training data. Fractions are allowed. 0: no such limit."),
    FIELD(stop.steps).unit("steps").from(0, step_limit).also({"steps", "max_steps", "iterations"})
      .means("The run ends after this many optimizer steps. 0: no such limit."),
    FIELD(stop.seconds).unit("seconds").from(0, second_limit).also({"time", "max_seconds"})
      .means("The run ends after this many seconds. The time before a resume counts too. 0: no such limit."),
    FIELD(stop.diverged_share).how_it_runs().from(0, 1).also({"divergence_share", "early_divergence"})
      .means("A run ends as diverged when the loss of every step has been above the loss of its first step for this share of "
             "the run. The run ends with an error, and a trial of a study is recorded as diverged. The share is one of stop.steps or stop.epochs; "
             "without them, of stop.seconds; without all three, the key has no effect. The loss must also be above that of a model that guesses "
             "(the logarithm of the number of classes or characters). It must be above twice the first loss if the share has fewer than 20 "
             "steps, or if the run begins with trained weights (branch.from), because the loss of such a run may rise. "
             "0: such a run trains to its end."),
    FIELD(stop.target_metric).words({"", "validation_loss", "validation_accuracy"}).also({"target", "metric"})
      .means("Stop when an evaluation reaches target_value: a loss at or below it, an accuracy at or above it. "
             "\"\": off."),
    FIELD(stop.target_value).from(0, 1e6)
      .means("Loss in nats, or accuracy as a share (0.75 for 75 %). Above 0 with a target_metric, 0 without."),

    FIELD(evaluate.every_epochs).how_it_runs().unit("epochs").from(0, epoch_limit).means("How often the model is evaluated. 0: "
             "off."),
    FIELD(evaluate.offset_epochs).how_it_runs().unit("epochs").from(0, epoch_limit)
      .means("The first evaluation of every_epochs happens after this many epochs. The next ones follow every "
             "every_epochs epochs (MLPerf: every 4, the first after 1, 2, 3 or 4). 0: the first one happens after "
             "every_epochs."),
    FIELD(evaluate.every_steps).how_it_runs().unit("steps").from(0, step_limit).means("Evaluations in addition to those of "
             "every_epochs. 0: off."),
    FIELD(evaluate.norm_statistics).words({"running", "recomputed", "last"})
      .means("The statistics that batch norm uses in an evaluation and that a checkpoint stores with the weights. running: "
             "averages over the steps (model.norm_momentum). recomputed: measured with the current weights on norm_samples "
             "training samples (Goyal et al. 2017; Wu and Johnson 2021). last: the statistics of the last step, averaged over "
             "all virtual workers (Akiba et al. 2017)."),
    FIELD(evaluate.norm_samples).unit("samples").from(0, 1e12).only_with("evaluate.norm_statistics", {"recomputed"})
      .means("The number of training samples used. recomputed needs this key. They are the first samples in the order "
             "of the first epoch, with the augmentation of training but without dropout. They are processed in groups "
             "of batch.worker, which must divide this number. Mean and variance are taken over all of the samples."),

    FIELD(checkpoint.every_epochs).how_it_runs().unit("epochs").from(0, epoch_limit).means("How often a checkpoint is written. 0: "
             "off."),
    FIELD(checkpoint.every_steps).how_it_runs().unit("steps").from(0, step_limit).means("Checkpoints in addition to those of the "
             "other keys. 0: off."),
    FIELD(checkpoint.every_seconds).how_it_runs().unit("seconds").from(0, second_limit)
      .means("Checkpoints by rank 0's clock, in addition to those of the other keys. 0: off."),
    FIELD(checkpoint.keep).how_it_runs().unit("files").from(1, 1e6).means("How many of the newest checkpoints are kept."),
    FIELD(checkpoint.keep_at).how_it_runs().also({"keep_every", "save_at", "milestones_to_keep"})
      .means("Points of the run at which a checkpoint is written that is never removed. A point is a number of epochs or of "
             "steps, as in [0.5, 2, 500 steps]. The checkpoint is written at the first step at the point or after it. 0: the "
             "initial weights."),
    FIELD(checkpoint.best).how_it_runs().means("Whether the checkpoint with the lowest validation loss is kept too."),

    FIELD(machine.device).how_it_runs().words({"auto", "cpu", "cuda"}).also({"gpu", "cuda"})
      .means("The device that computes. auto: this rank's GPU if there is one, otherwise the CPU."),
    FIELD(machine.graphs).how_it_runs().also({"cuda_graphs"})
      .means("GPU: whether a step's kernels are recorded once and replayed."),
    FIELD(machine.search_seconds).how_it_runs().unit("seconds").from(0, second_limit)
      .means("GPU: the longest time that a start spends on timing fusions (ways to join kernels) that machine.plan_cache does not "
             "have. 0: no timing; the fusion that moves the fewest bytes is used."),
    FIELD(machine.plan_cache).how_it_runs().path()
      .means("GPU: folder that stores cuDNN's plans and the fusions that were found. \"\": the folder ringtrain in "
             "$XDG_CACHE_HOME or ~/.cache."),

    FIELD(communication.library).how_it_runs().words({"auto", "nccl", "mpi"}).also({"comm"})
      .means("GPU: the library that sums gradients. mpi uses host memory, and several ranks may then share a GPU. auto: nccl."),
    FIELD(communication.algorithm).how_it_runs().words({"auto", "ring", "tree", "halving", "hierarchical", "mpi"})
      .also({"allreduce", "all_reduce"})
      .means("The all-reduce algorithm for gradients. Between CPUs (MPI): ring, halving (recursive halving and doubling), "
             "hierarchical (within the nodes first) or mpi (the algorithm of the MPI library). auto computes which one is the "
             "fastest from the latencies and bandwidths below. Between GPUs (NCCL): ring or tree. auto: NCCL chooses. Only auto "
             "with parallel.kind server, and only auto or ring with parallel.shard_state."),
    FIELD(communication.order).how_it_runs().words({"any", "fixed"}).also({"deterministic", "reproducible"})
      .means("The order in which gradients are added. any: the fastest order. fixed: one binary tree over the passes of all "
             "ranks. Losses, weights and checkpoints then have the same bits on 1, 2, 4, 8 ... ranks of one kind of machine "
             "with the same run.threads. If batch.micro is 0, a pass is then batch.worker samples. `ringtrain plan` prints the "
             "cost of the fixed order."),
    FIELD(communication.gradient_type).words({"fp32", "bf16", "fp16"})
      .means("NCCL: the number type in which gradients are sent. Each rank stores them in fp32."),
    FIELD(communication.max_ctas).how_it_runs().unit("thread blocks").from(0, 1024)
      .means("NCCL: the most thread blocks that NCCL may use on the GPU. 0: NCCL chooses."),
    FIELD(communication.bucket_mib).how_it_runs().unit("MiB").from(0, 65536).also({"bucket", "bucket_cap_mb"})
      .means("Size of a gradient bucket. The all-reduce of a bucket begins as soon as the bucket is complete. 0: 1 MiB between "
             "CPUs, 16 MiB between GPUs, and at least 4 KiB for each rank."),
    FIELD(communication.chunk_kib).how_it_runs().unit("KiB").from(1, 1048576).means("Size of one message when MPI sums gradients."),
    FIELD(communication.node_latency_us).how_it_runs().unit("microseconds").above(0, 1e6)
      .means("Time until a rank sees the values of another rank of its node. `ringtrain bench comm` measures the two latencies and the two "
             "bandwidths."),
    FIELD(communication.node_gb_s).how_it_runs().unit("GB/s").above(0, 1e6)
      .means("Rate at which a rank reads values of another rank while all ranks of the node read."),
    FIELD(communication.network_latency_us).how_it_runs().unit("microseconds").above(0, 1e6)
      .means("Latency of a message between nodes."),
    FIELD(communication.network_gb_s).how_it_runs().unit("GB/s").above(0, 1e6)
      .means("Bandwidth between two nodes when one rank of each uses the network."),
    FIELD(communication.timeout_seconds).how_it_runs().unit("seconds").above(0, second_limit).also({"timeout"})
      .means("A step that takes longer ends the job, after printing where every rank stands."),
    FIELD(communication.check_every_steps).how_it_runs().unit("steps").from(-1, step_limit)
      .also({"check_replicas", "desync", "checksum"})
      .means("How often the ranks compare checksums of their copies. Copies are the weights, batch norm's running statistics and "
             "the optimizer's state, if every rank has all of it. In a pipeline the replicas of a stage are compared. The "
             "ranks also compare before every checkpoint. A difference ends the "
             "job with the name of the rank and its host. The comparison cannot see an error before the gradients are summed, "
             "because all ranks then get the same wrong sum. -1: about once a minute. 0: never. Ranks with asynchronous servers "
             "or backup workers compare only when all of them meet, at evaluations and checkpoints; only -1 and 0 fit them."),

    FIELD(parallel.kind).how_it_runs().words({"ring", "server", "pipeline"}).also({"strategy", "distributed"})
      .means("ring: every rank has all weights, and gradients are summed over the ranks. server: parameter servers "
             "update the weights. The first ranks are the servers. Synchronous servers without backup workers are "
             "workers too. Asynchronous servers and servers with backup workers do nothing else. pipeline: consecutive "
             "parts of the model lie on different ranks."),
    FIELD(parallel.shard_state).how_it_runs().only_with("parallel.kind", {"ring"}).also({"zero", "zero_stage"})
      .means("Each rank keeps the optimizer's state of a part of the weights and updates that part (ZeRO stage 1, "
             "Rajbhandari et al. 2020). The weights stay whole on every rank."),
    FIELD(parallel.servers).how_it_runs().unit("ranks").from(1, 65536).only_with("parallel.kind", {"server"})
      .means("The number of servers. The weights and the optimizer's state are cut into this many ranges of equal size."),
    FIELD(parallel.mode).words({"sync", "async"}).only_with("parallel.kind", {"server"})
      .means("sync: a step waits for the gradients of all workers. async: the gradient of each worker is an update by itself, "
             "which is applied when it arrives."),
    FIELD(parallel.max_staleness).unit("steps").from(-1, step_limit).only_with("parallel.mode", {"async"})
      .means("How many steps a worker may be ahead of the slowest one (Ho et al. 2013). -1: any number."),
    FIELD(parallel.staleness_rate).words({"none", "inverse"}).only_with("parallel.mode", {"async"})
      .means("inverse: the rate of an update is divided by its staleness (Zhang et al. 2016)."),
    FIELD(parallel.replay).how_it_runs().path().only_with("parallel.mode", {"async"})
      .means("The recorded order of arrival of an earlier run (its arrivals.csv). The updates are applied in that order again, so "
             "the run is reproducible."),
    FIELD(parallel.backup_workers).unit("workers").from(0, 65536).only_with("parallel.kind", {"server"})
      .means("With mode sync: a step uses the gradients that arrive first, and drops this many gradients, the latest ones "
             "(Chen et al. 2016)."),
    FIELD(parallel.stages).how_it_runs().unit("stages").from(2, 1024).only_with("parallel.kind", {"pipeline"})
      .also({"pipeline_stages", "pp"}).means("Number of stages. A stage is a part of the model with consecutive layers, on a rank "
             "of its own."),
    FIELD(parallel.cuts).how_it_runs().only_with("parallel.kind", {"pipeline"})
      .means("Where the model is cut into stages. auto: all stages take nearly the same time. Otherwise name the first layer of "
             "every stage except the first: [layer2.0, layer3.0]."),
    FIELD(parallel.schedule).how_it_runs().words({"gpipe", "1f1b"}).only_with("parallel.kind", {"pipeline"})
      .means("gpipe: all forward passes of a step, then all backward passes (Huang et al. 2019). 1f1b: one forward, one "
             "backward (Narayanan et al. 2019), which keeps fewer micro-batches in memory."),

    FIELD(memory.recompute).how_it_runs().also({"checkpointing", "gradient_checkpointing", "remat"})
      .means("Blocks whose activations are computed again in the backward pass instead of being kept (Chen et al. 2016). none: no "
             "block. auto: cheap blocks that make the run fit into memory.limit_gib, without any block that is not needed. Or names of "
             "blocks, such as layer1.0, features.3 or lstm.l0. layer1 stands for all blocks of layer1. The key changes no bit of "
             "the result. `plan` shows the cost."),
    FIELD(memory.offload).how_it_runs()
      .means("GPU: activations of early layers are copied to host memory until the backward pass. As many are copied as can be "
             "sent to the host during the forward pass and back during the backward pass. If memory.limit_gib needs it, more "
             "activations are copied, which costs time. The key changes no bit of the result. `plan` shows which activations are "
             "copied."),
    FIELD(memory.limit_gib).how_it_runs().unit("GiB").from(0, 1e6)
      .means("The most memory that each rank may use: GPU memory, or host memory if the rank computes on a CPU. A plan that "
             "needs more is refused. If the key is set, batch.micro: 0 chooses the largest micro-batch that fits. 0: the "
             "memory of the GPU; on CPUs no limit."),

    FIELD(test.slow_rank).how_it_runs().from(-1, 1e6)
      .means("For experiments with a slow rank: the number of the slow rank, from 0. It sleeps at the beginning of each of its "
             "steps. A parameter server with a rank of its own sleeps before each update. No result changes, except where "
             "it depends on the order in which gradients arrive. -1: none."),
    FIELD(test.slow_seconds).how_it_runs().unit("seconds").from(0, second_limit)
      .means("How long the slow rank sleeps in each of its steps or updates."),
    FIELD(test.flip_bit_rank).how_it_runs().from(-1, 1e6)
      .means("For a test of communication.check_every_steps: the rank with a memory error, from 0. -1: none."),
    FIELD(test.flip_bit_step).how_it_runs().unit("steps").from(0, step_limit)
      .means("After this step one bit of that rank's copy flips."),
    FIELD(test.flip_bit_in).how_it_runs()
      .means("The tensor in which the bit flips, named as in checkpoints: weights/fc.weight, optimizer/momentum/fc.weight."),

    FIELD(run.dir).how_it_runs().path().also({"output", "output_dir", "out", "directory"})
      .means("The run's own folder. \"\": results/<name>/<id>."),
    FIELD(run.id).how_it_runs().folder_name()
      .means("The name of the run's folder in results/<name>. It cannot be used together with run.dir. \"\": the time of the "
             "start."),
    FIELD(run.log_every_steps).how_it_runs().unit("steps").from(0, step_limit).also({"print_every", "log_interval"})
      .means("How often a line is printed when the output is not a terminal. 0: about twenty lines per epoch, "
             "and at most one per step."),
    FIELD(run.threads).how_it_runs().unit("threads").from(0, 4096).also({"num_threads"})
      .means("Threads of each rank. 0: its share of the processors that it may use. A quota of CPU time (of a container or "
             "a batch job's control group) counts: with a quota of 2 CPUs on 64 processors, the ranks share 2."),
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
  const auto dot = key.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : key.substr(0, dot);
}

std::string_view leaf_of(std::string_view key) {
  const auto dot = key.rfind('.');
  return dot == std::string_view::npos ? key : key.substr(dot + 1);
}

namespace {

// Adds the section, after those around it, if the list does not have it.
void add_section(std::string_view section, std::vector<std::string_view>& list) {
  if (section.empty() || std::ranges::count(list, section) > 0) return;
  add_section(section_of(section), list);
  list.push_back(section);
}

std::vector<std::string_view> make_sections() {
  std::vector<std::string_view> list;
  for (const Field& field : schema()) add_section(section_of(field.key), list);
  return list;
}

}  // namespace

const std::vector<std::string_view>& sections() {
  static const std::vector<std::string_view> names = make_sections();
  return names;
}

bool is_section(std::string_view key) {
  return std::ranges::count(sections(), key) > 0;
}

std::string nearest_key(std::string_view key, bool is_map) {
  if (key.size() > 100) return "";
  std::string_view best;
  std::size_t best_cost = std::max<std::size_t>(2, leaf_of(key).size() / 3 + 1);
  const auto consider = [&](std::string_view candidate, std::size_t cost) {
    if (cost < best_cost) best = candidate, best_cost = cost;
  };
  const std::string_view section = section_of(key), leaf = leaf_of(key);
  if (is_map)
    for (const std::string_view known : sections()) consider(known, edit_distance(key, known));
  if (!is_map || (best.empty() && !section.empty())) {
    const std::string within = is_section(key) ? cat(key, ".") : "";
    for (const Field& field : schema()) {
      if (!field.key.starts_with(within)) continue;
      // A key in another section counts as one more edit, so that a near key of the same section wins. The end of a
      // section's name, as in half_life.beta1, is enough.
      const std::string_view its = section_of(field.key);
      const bool same = its == section || (!section.empty() && its.ends_with(cat(".", section)));
      const std::size_t apart = same ? 0 : 1;
      consider(field.key, std::min(edit_distance(key, field.key), edit_distance(leaf, leaf_of(field.key)) + apart));
      for (const std::string_view name : field.also_) consider(field.key, leaf == name ? apart : best_cost);
    }
  }
  return best.empty() ? "" : cat("; did you mean '", best, "'?");
}

ConstMember member_of(const Field& field, const Experiment& experiment) {
  // Field::member() returns a pointer into its argument and changes nothing.
  return std::visit([](const auto* place) { return ConstMember(place); },
                    field.member(const_cast<Experiment&>(experiment)));
}

bool is_list(const Field& field) {
  return has_type<std::vector<double>>(field) || has_type<std::vector<std::int64_t>>(field) ||
         has_type<std::vector<std::string>>(field) || has_type<std::vector<EpochFactor>>(field) ||
         has_type<std::vector<RunPoint>>(field);
}

bool is_default(const Field& field, const Experiment& experiment) {
  static const Experiment defaults;
  return value_text(field, experiment) == value_text(field, defaults);
}

void set_default(const Field& field, Experiment& experiment) {
  Experiment defaults;
  std::visit([&](auto* place) { *place = *std::get<decltype(place)>(field.member(defaults)); },
             field.member(experiment));
}

const Field* replacement_of(const Field& field, const Experiment& experiment) {
  const auto found = std::ranges::find(schema(), field.key, &Field::instead_of_);
  return found == schema().end() || is_default(*found, experiment) ? nullptr : &*found;
}

bool has_effect(const Field& field, const Experiment& experiment) {
  if (replacement_of(field, experiment) != nullptr) return false;
  if (field.only_with_.empty()) return true;
  return std::ranges::count(field.only_words_, value_text(*find_field(field.only_with_), experiment)) > 0;
}

bool has_effect_on(const Field& field, std::string_view data) {
  return field.only_for_.empty() || field.only_for_ == data;
}

bool decides_what_is_learned(const Field& field, const Experiment& e) {
  if (!has_effect(field, e)) return false;  // so that a new kind of model leaves the ids of the others as they are
  if (field.key == "model.norm_momentum" && !has_batch_norm(e.model) && e.model.kind != "alexnet")
    return false;  // so that a cnn or an mlp without norms keeps its id
  if (section_of(field.key) == "branch" && e.branch.from.empty())
    return false;  // if the run is not a branch, its id does not depend on these keys
  if (section_of(field.key) == "parallel" && !has_server_ranks(e.parallel))
    return false;  // all other kinds make the same updates, up to rounding
  if (field.off_by_default_ && is_default(field, e)) return false;  // so that a new key leaves ids as they are
  if (field.key.starts_with("average.") && e.average.half_life == 0) return false;
  if (!field.how_it_runs_) return true;
  const bool follows = e.batch.follow_noise > 0;
  if (field.key == "noise.small_batch") return follows || e.optimizer.adascale;
  return follows && (field.key == "noise.every_steps" || field.key == "noise.half_life");
}

std::string deciding_keys(const Experiment& experiment) {
  std::string text;
  for (const Field& field : schema())
    if (decides_what_is_learned(field, experiment)) text += cat(field.key, "=", value_text(field, experiment), "\n");
  return text;
}

bool is_folder_name(std::string_view text) {
  return !text.empty() && text.size() <= 100 && text[0] != '.' &&
         text.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") ==
             std::string_view::npos;
}

}  // namespace ringtrain
