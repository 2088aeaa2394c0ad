// Tests sections within sections (optimizer.half_life), keys that take another key's place, and the keys that change
// with the batch.
#include <gtest/gtest.h>

#include "base/error.h"
#include "config/reader.h"
#include "config/schema.h"
#include "config/schema_text.h"

namespace ringtrain {
namespace {

const std::string first_keys = "name: a\ndata: {train: x}\nbatch: {global: 256, worker: 32}\nstop: {epochs: 4}\n";

Experiment read(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
  return parse_experiment(first_keys + yaml, "a.yaml", overrides);
}
std::string refusal(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
  try {
    read(yaml, overrides);
  } catch (const Error& error) {
    return cat(error.what(), " | ", error.hint());
  }
  return "";
}

TEST(NestedSections, AreReadFromTheFileAndFromOverrides) {
  const char* block = "optimizer:\n  half_life:\n    beta1: 1000\n    beta2: 5.0e+4\n  kind: adamw\n";
  const char* flow = "optimizer: {kind: adamw, half_life: {beta1: 1000, beta2: 50000}}\n";
  const Experiment a = read(block), b = read(flow);
  const Experiment c =
      read("", {"optimizer.kind=adamw", "optimizer.half_life.beta1=1000", "optimizer.half_life.beta2=50000"});
  EXPECT_EQ(a.optimizer.half_life, (HalfLifeConfig{.momentum = 0, .beta1 = 1000, .beta2 = 50000}));
  EXPECT_EQ(a, b);
  EXPECT_EQ(a, c);
  EXPECT_EQ(section_of("optimizer.half_life.beta1"), "optimizer.half_life");
  EXPECT_EQ(leaf_of("optimizer.half_life.beta1"), "beta1");
  EXPECT_TRUE(is_section("optimizer.half_life") && is_section("optimizer") && !is_section("half_life"));
}

// A key whose place is taken is not written, so that the text can be read again.
TEST(NestedSections, AreWrittenAsTheyAreRead) {
  const Experiment e = read("optimizer: {kind: adamw, half_life: {beta1: 1000}}\n");
  const std::string yaml = to_yaml(e);
  EXPECT_NE(yaml.find("\noptimizer:\n  kind: adamw\n"), std::string::npos) << yaml;
  EXPECT_NE(yaml.find("\n  half_life:\n    momentum: 0\n    beta1: 1000\n    beta2: 0\naverage:\n"), std::string::npos)
      << yaml;
  EXPECT_EQ(yaml.find("\n  beta1:"), std::string::npos) << yaml;
  EXPECT_NE(yaml.find("\n  beta2: 0.999\n"), std::string::npos) << yaml;
  EXPECT_EQ(parse_experiment(yaml, "b.yaml", {}), e);
  const Experiment plain = read("");
  EXPECT_EQ(parse_experiment(to_yaml(plain), "b.yaml", {}), plain);
}

TEST(NestedSections, MistakesAreNamedWithTheirPlace) {
  const std::string nested = "optimizer:\n  kind: sgd\n  half_life:\n    ";
  EXPECT_EQ(refusal(nested + "momentun: 10\n"),
            "a.yaml:8:5: unknown key 'optimizer.half_life.momentun'; did you mean 'optimizer.half_life.momentum'? | "
            "Known here: momentum beta1 beta2 ");
  EXPECT_EQ(refusal(nested + "momentum: -1\n"),
            "a.yaml:8:15: optimizer.half_life.momentum is '-1', expected a number from 0 to 1.0e+15 | ");
  EXPECT_TRUE(refusal("optimizer: {half_lif: {beta1: 1}}\n")
                  .starts_with("a.yaml:5:13: unknown key 'optimizer.half_lif'; did you mean 'optimizer.half_life'? | "
                               "Known here: kind momentum "));
  EXPECT_EQ(refusal("optimizer: {half_life: 1000}\n"),
            "a.yaml:5:24: optimizer.half_life is '1000', expected keys of this section below it | ");
  EXPECT_EQ(refusal("", {"optimizer.half_life=1000"}),
            "override 'optimizer.half_life=1000': optimizer.half_life is a section, expected one of its keys | ");
  EXPECT_EQ(
      refusal("", {"half_life.beta1=1000"}),
      "override 'half_life.beta1=1000': unknown key 'half_life.beta1'; did you mean 'optimizer.half_life.beta1'? | "
      "configs/README.md lists every key.");
  EXPECT_EQ(refusal("optimizer: {half_life.beta1: 1000}\n"),
            "a.yaml:5:13: unknown key 'optimizer.half_life.beta1', expected beta1 below optimizer.half_life: (dots are "
            "for overrides) | ");
}

TEST(HalfLives, TakeThePlaceOfTheFactor) {
  // Both are refused even if the factor is the default.
  EXPECT_EQ(
      refusal("optimizer: {kind: sgd, momentum: 0.9, half_life: {momentum: 1000}}\n"),
      "a.yaml:5:51: optimizer.half_life.momentum is 1000 and optimizer.momentum is 0.9, expected only one of them | "
      "Leave out optimizer.momentum (as an override: optimizer.momentum=null), or set optimizer.half_life.momentum=0.");
  EXPECT_EQ(refusal("optimizer: {half_life: {beta2: 1000}}\n", {"optimizer.beta2=0.95"}),
            "override 'optimizer.beta2=0.95': optimizer.half_life.beta2 is 1000 and optimizer.beta2 is 0.95, expected "
            "only one of them | Leave out optimizer.beta2 (as an override: optimizer.beta2=null), or set "
            "optimizer.half_life.beta2=0.");
  EXPECT_EQ(
      refusal("optimizer: {kind: adam, half_life: {momentum: 1000}}\n"),
      "a.yaml:5:37: optimizer.half_life.momentum is 1000 but optimizer.kind is adam; optimizer.half_life.momentum "
      "may be set only with sgd or lars or rmsprop_to_sgd or muon | Set optimizer.half_life.momentum=0, or choose "
      "another optimizer.kind.");
  EXPECT_NE(refusal("optimizer: {kind: sgd, schedule_free: true, half_life: {momentum: 1000}}\n")
                .find("optimizer.schedule_free is true but optimizer.half_life.momentum is 1000"),
            std::string::npos);
  EXPECT_EQ(refusal("optimizer: {kind: sgd, momentum: 0, nesterov: true}\n").substr(0, 12), "a.yaml:5:37:");
  EXPECT_EQ(refusal("optimizer: {kind: sgd, nesterov: true, half_life: {momentum: 10}}\n"), "");
}

TEST(HalfLives, AnOverrideTakesTheFactorOfTheFileBack) {
  const std::string factors = "optimizer: {kind: muon, momentum: 0.9, beta1: 0.8, beta2: 0.95}\n";
  for (const char* factor : {"momentum", "beta1", "beta2"}) {
    const std::string half_life = cat("optimizer.half_life.", factor, "=1000"),
                      gone = cat("optimizer.", factor, "=null");
    EXPECT_NE(refusal(factors, {half_life}).find(cat("(as an override: ", gone, ")")), std::string::npos);
    const Experiment e = read(factors, {half_life, gone});
    EXPECT_EQ(e, read(factors, {gone, half_life})) << "the order of overrides of two keys does not matter";
    EXPECT_EQ(parse_experiment(to_yaml(e), "b.yaml", {}), e) << factor;
    EXPECT_NE(refusal(factors, {gone, half_life, cat("optimizer.", factor, "=0.5")}), "") << "the last value wins";
  }
  EXPECT_EQ(refusal("optimizer: {kind: sgd, half_life: {momentum: 1000}}\n",
                    {"optimizer.half_life.momentum=null", "optimizer.momentum=0.5"}),
            "");
}

// The id of an experiment is made from the keys that decide. A new key at its default must leave it as it is.
TEST(HalfLives, DecideOnlyWhereTheyAreGiven) {
  const auto decides = [](const char* key, const Experiment& e) {
    return decides_what_is_learned(*find_field(key), e);
  };
  const Experiment plain = read(""), given = read("optimizer: {half_life: {beta1: 100}}\naverage: {half_life: 5}\n");
  for (const char* key : {"optimizer.half_life.beta1", "optimizer.weight_decay_by", "average.half_life",
                          "average.from_epoch", "average.evaluate", "data.share", "data.channels"})
    EXPECT_FALSE(decides(key, plain)) << key;
  EXPECT_TRUE(decides("optimizer.beta1", plain));
  EXPECT_TRUE(decides("optimizer.half_life.beta1", given) && decides("average.half_life", given));
  EXPECT_FALSE(decides("optimizer.beta1", given));
  EXPECT_TRUE(decides("data.share", read("", {"data.share=0.5"})));
  EXPECT_TRUE(decides("data.channels", read("", {"data.channels=1"})));
}

TEST(WeightDecayBy, NeedsDecoupledDecay) {
  EXPECT_EQ(
      refusal("optimizer: {kind: sgd, weight_decay: 0.1, weight_decay_by: sample}\n"),
      "a.yaml:5:43: optimizer.weight_decay_by is sample but optimizer.kind is sgd; optimizer.weight_decay_by may be "
      "set only with adamw or muon | Set optimizer.weight_decay_by=step, or choose another optimizer.kind.");
  EXPECT_NE(refusal("optimizer: {kind: muon, other_kind: sgd, weight_decay_by: sample}\n").find("expected adamw"),
            std::string::npos);
  EXPECT_EQ(refusal("optimizer: {kind: adamw, weight_decay: 0.1, weight_decay_by: sample}\n"), "");
}

TEST(Average, FitsTheRestOfTheExperiment) {
  EXPECT_EQ(refusal("average: {from_epoch: 2}\n"),
            "a.yaml:5:11: average.from_epoch is 2 but average.half_life is 0, expected a half-life in samples | Set "
            "average.from_epoch=0.");
  EXPECT_NE(refusal("average: {half_life: 10, from_epoch: 4}\n").find("expected an epoch before the end"),
            std::string::npos);
  EXPECT_NE(refusal("average: {half_life: 10}\nmodel: {kind: resnet}\n")
                .find("expected evaluate.norm_statistics: recomputed, or average.evaluate: false"),
            std::string::npos);
  EXPECT_EQ(refusal("average: {half_life: 10, evaluate: false}\nmodel: {kind: resnet}\n"), "");
  EXPECT_NE(refusal("average: {half_life: 10}\noptimizer: {kind: sgd, schedule_free: true}\n")
                .find("the weights are averaged already"),
            std::string::npos);
}

TEST(AdamSde, IsRefusedWhereItDoesNotHold) {
  const std::string sde = "learning_rate: {scaling: adam_sde, base_batch: 16}\n";
  EXPECT_EQ(
      refusal(sde),
      "a.yaml:5:17: learning_rate.scaling is adam_sde with k = batch.global / base_batch = 16, but optimizer.beta1 "
      "is 0.9, and k (1 - beta) is 1.6, expected less than 1 | The largest batch.global is 159; or take a beta "
      "nearer to 1.");
  EXPECT_EQ(refusal(sde, {"batch.global=128", "batch.worker=128"}), "");
  EXPECT_EQ(refusal(sde, {"batch.global=159", "batch.worker=159"}), "");
  EXPECT_NE(refusal(sde, {"batch.global=160", "batch.worker=160"}), "");
  EXPECT_EQ(refusal(sde, {"batch.global=16", "batch.worker=16", "optimizer.beta1=0"}), "");  // k is 1
  EXPECT_NE(refusal(sde, {"optimizer.kind=lamb"}).find("expected adam, adamw or rmsprop"), std::string::npos);
  EXPECT_EQ(refusal(sde, {"optimizer.kind=rmsprop"}), "");  // it has no beta1, and 16 x 0.001 is below 1
  EXPECT_NE(refusal(sde, {"optimizer.half_life.beta1=1000", "batch.global=128", "batch.worker=128"})
                .find("optimizer.half_life.beta1"),
            std::string::npos);
  EXPECT_NE(refusal("learning_rate: {scaling: adam_sde}\n").find("learning_rate.base_batch is not given"),
            std::string::npos);
}

}  // namespace
}  // namespace ringtrain
