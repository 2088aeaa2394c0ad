// Tests a running search: which trials may run and until when, and that decisions never change.
#include "study/search_course.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "study/search.h"
#include "tests/unit/good_experiment.h"
#include "tests/unit/with_folder.h"

namespace ringtrain {
namespace {

using State = TrialStanding::State;

class SearchCourseTest : public WithFolder {
 protected:
  void SetUp() override {
    WithFolder::SetUp();
    std::ofstream(path("exp.yaml")) << good;
    read("vary: {learning_rate.base: [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]}\n");
  }
  void read(const std::string& vary) {
    study_.emplace(
        parse_study("name: s\nexperiment: exp.yaml\nsearch: halving\nbudget: {samples: 6400, factor: 3}\n" + vary,
                    path("s.yaml"), {"data.validation=some/validation"}));
    trials_ = make_trials(*study_);
    standings_.assign(trials_.list.size(), {});
  }
  SearchCourse course() const { return {searches_of(*study_, trials_).at(0), folder_.string()}; }
  static double loss(const Trial& trial) { return std::abs(trial.experiment.learning_rate.base - 0.42); }

  // Trains every trial that may run, until there is none. Stops after `most` of them, as a killed job does.
  std::vector<std::string> run(SearchCourse& course, std::size_t most = 1000) {
    std::vector<std::string> log;
    for (bool any = true; any && log.size() < most;) {
      any = false;
      course.update(standings_);
      for (std::size_t i = 0; i < standings_.size() && log.size() < most; ++i) {
        const auto until = course.task(i, standings_[i]);
        if (!until) continue;
        any = true;
        standings_[i] = {*until == 0 ? State::finished : State::going, *until == 0 ? 6400 : *until,
                         loss(trials_.list[i])};
        log.push_back(cat(trials_.list[i].name, ":", *until));
      }
    }
    course.update(standings_);
    return log;
  }

  std::optional<Study> study_;
  Trials trials_;
  std::vector<TrialStanding> standings_;
};

TEST_F(SearchCourseTest, EveryRungEndsBeforeTheNextBegins) {
  SearchCourse search = course();
  const std::vector<std::string> log = run(search);
  ASSERT_EQ(log.size(), 9u + 3u + 1u);
  EXPECT_EQ(log[0], "base-0.1:712");  // ceil(6400 / 9)
  EXPECT_EQ(std::vector(log.begin() + 9, log.end()),
            (std::vector<std::string>{"base-0.3:2134", "base-0.4:2134", "base-0.5:2134", "base-0.4:0"}));
  EXPECT_TRUE(search.is_over());
  EXPECT_EQ(search.rung_of(3), 3u);
  EXPECT_FALSE(search.is_left_behind(3));
  EXPECT_EQ(search.rung_of(2), 2u);
  EXPECT_TRUE(search.is_left_behind(2));
}

TEST_F(SearchCourseTest, AKilledSearchGoesOnWithTheSamePromotions) {
  SearchCourse whole = course();
  const std::vector<std::string> expected = run(whole);
  for (std::size_t cut = 1; cut < expected.size(); ++cut) {
    for (const char* file : {"rung-1.json", "rung-2.json"}) std::filesystem::remove(path(file));
    standings_.assign(trials_.list.size(), {});
    SearchCourse first = course();
    std::vector<std::string> log = run(first, cut);
    SearchCourse second = course();
    const std::vector<std::string> rest = run(second);
    log.insert(log.end(), rest.begin(), rest.end());
    EXPECT_EQ(log, expected) << cut;
  }
}

TEST_F(SearchCourseTest, WhoFailedIsLeftBehindForGood) {
  SearchCourse search = course();
  search.update(standings_);
  for (std::size_t i = 0; i < standings_.size(); ++i) standings_[i] = {State::going, 712, loss(trials_.list[i])};
  standings_[3] = {State::ended, 64, 0};  // the best one
  standings_[4].loss = std::nan("");      // the second best
  search.update(standings_);
  EXPECT_TRUE(search.is_left_behind(3) && search.is_left_behind(4));
  standings_[3] = {State::going, 0, 0};  // it runs again, but the rung has been decided
  SearchCourse again = course();
  again.update(standings_);
  EXPECT_FALSE(again.task(3, standings_[3]));
  EXPECT_EQ(again.task(2, standings_[2]), 2134);
  EXPECT_EQ(again.task(5, standings_[5]), 2134);
}

TEST_F(SearchCourseTest, ATrialThatFailedIsWaitedForWhereItsRungIsNotDecided) {
  SearchCourse search = course();
  for (std::size_t i = 0; i < standings_.size(); ++i) standings_[i] = {State::going, 712, loss(trials_.list[i])};
  standings_[3].samples = 700;
  search.update(standings_);
  EXPECT_EQ(search.task(3, standings_[3]), 712);
  EXPECT_FALSE(search.task(2, standings_[2]));
  EXPECT_FALSE(std::filesystem::exists(path("rung-1.json")));
}

TEST_F(SearchCourseTest, SeedsOfAPointGoOnTogetherByTheirMean) {
  read("vary: {learning_rate.base: [0.1, 0.2, 0.3]}\nrepeat: 2\n");
  SearchCourse search = course();
  // The means are 2, 1.5 and 1.6. The first point has the lowest single loss.
  const double losses[] = {0.5, 3.5, 1.5, 1.5, 1.6, 1.6};
  for (std::size_t i = 0; i < 6; ++i) standings_[i] = {State::going, 2134, losses[i]};
  search.update(standings_);
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(search.task(i, standings_[i]).has_value(), i == 2 || i == 3) << i;
}

TEST_F(SearchCourseTest, ANewJobFollowsWhatAnotherHasDecided) {
  SearchCourse a = course(), b = course();
  for (std::size_t i = 0; i < standings_.size(); ++i) standings_[i] = {State::going, 712, loss(trials_.list[i])};
  a.update(standings_);
  std::vector<TrialStanding> seen_by_b = standings_;
  seen_by_b[0].loss = 0;  // b sees another loss, but the file decides
  b.update(seen_by_b);
  EXPECT_FALSE(b.task(0, seen_by_b[0]));
  EXPECT_EQ(b.task(3, seen_by_b[3]), 2134);
}

TEST_F(SearchCourseTest, AnotherSearchOfTheSameNameIsRefused) {
  SearchCourse search = course();
  run(search);
  read("vary: {learning_rate.base: [0.1, 0.2, 0.3, 0.4]}\n");
  expect_contains(message_of([&] { course(); }),
                  "rung-1.json: 9 points to 712 samples were compared, but this study has 4");
  read("vary: {learning_rate.base: [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.95]}\n");
  expect_contains(message_of([&] { course(); }), "9 points to 712 samples were compared, but this study has 9 others");
  read("vary: {learning_rate.base: [0.1, 0.2]}\n");
  std::vector<TrialSearch> searches = searches_of(*study_, trials_);
  searches[0].name = "base-0.1";
  expect_contains(message_of([&] { SearchCourses(searches, folder_.string()); }),
                  "rung-1.json: this study's searches were decided with another budget.within");
}

TEST_F(SearchCourseTest, ASearchEndsWhenAPointHasReachedItsTarget) {
  read("vary: {learning_rate.base: [0.1, 0.2, 0.3]}\nrepeat: 2\n");
  SearchCourse search = course();
  for (std::size_t i = 0; i < 6; ++i) standings_[i] = {State::going, 2134, 1};
  standings_[2] = {State::reached, 900, 5};  // its loss is that of an early sample, so it does not count
  SearchCourse with_one_seed = course();
  with_one_seed.update(standings_);
  EXPECT_EQ(with_one_seed.task(3, standings_[3]),
            0);  // its point is the best, and this seed has not reached the target
  std::filesystem::remove(path("rung-1.json"));
  EXPECT_TRUE(with_one_seed.is_left_behind(0) && with_one_seed.is_left_behind(4));
  standings_[3] = {State::reached, 1200, 2};
  search.update(standings_);
  EXPECT_TRUE(search.is_over());
  for (std::size_t i = 0; i < 6; ++i) EXPECT_FALSE(search.task(i, standings_[i])) << i;
  EXPECT_TRUE(search.is_left_behind(0));
}

// Three of nine points would go on.
TEST_F(SearchCourseTest, NoOtherPointGoesOnAfterTheTarget) {
  SearchCourse search = course();
  for (std::size_t i = 0; i < 9; ++i) standings_[i] = {State::going, 712, loss(trials_.list[i])};
  standings_[0] = {State::reached, 500, 1};
  search.update(standings_);
  EXPECT_TRUE(search.is_over());
  for (std::size_t i = 0; i < 9; ++i) EXPECT_FALSE(search.task(i, standings_[i])) << i;
}

TEST_F(SearchCourseTest, ALaterRungMayHaveFewerPointsThanPlanned) {
  SearchCourse search = course();
  for (std::size_t i = 0; i < standings_.size(); ++i) standings_[i] = {State::ended, 64, 0};
  standings_[3] = {State::going, 712, 1};
  standings_[4] = {State::going, 712, 2};
  search.update(standings_);
  standings_[3].samples = standings_[4].samples = 2134;
  search.update(standings_);
  EXPECT_EQ(course().task(3, standings_[3]), 0);  // another job reads both decisions
}

TEST_F(SearchCourseTest, EachValueOfWithinHasASearchOfItsOwn) {
  study_.emplace(
      parse_study("name: s\nexperiment: exp.yaml\nsearch: halving\n"
                  "budget: {samples: 640 + 10 * batch.global, factor: 2, within: batch.global}\n"
                  "vary: {batch.global: [64, 128], learning_rate.base: [0.1, 0.2]}\n",
                  path("s.yaml"), {"data.validation=some/validation"}));
  trials_ = make_trials(*study_);
  standings_.assign(4, {});
  const std::vector<TrialSearch> searches = searches_of(*study_, trials_);
  ASSERT_EQ(searches.size(), 2u);
  EXPECT_EQ(searches[0].places, (std::vector<std::size_t>{0, 1}));
  EXPECT_EQ(searches[0].rungs, (std::vector<Rung>{{2, 640}, {1, 1280}}));
  EXPECT_EQ(searches[1].name, "global-128");
  EXPECT_EQ(searches[1].rungs, (std::vector<Rung>{{2, 960}, {1, 1920}}));
  EXPECT_EQ(trials_.list[2].experiment.stop.steps, 15);
  EXPECT_EQ(samples_of_searches(*study_, trials_), 640 + 1280 + 1024 + 1920) << "960 samples are 7.5 batches";

  SearchCourses all(searches, folder_.string());
  EXPECT_EQ(all.task(0, standings_[0]), 640);
  EXPECT_EQ(all.task(2, standings_[2]), 960);
  standings_[0] = {State::going, 640, 3};
  standings_[1] = {State::going, 640, 2};
  all.update(standings_);
  EXPECT_EQ(all.task(1, standings_[1]), 0);
  EXPECT_TRUE(all.is_left_behind(0));
  EXPECT_EQ(all.rung_of(1), 2u);
  EXPECT_EQ(all.task(2, standings_[2]), 960);  // the other search has decided nothing
  EXPECT_TRUE(std::filesystem::exists(path("rung-1_global-64.json")));
  EXPECT_FALSE(all.is_over());
}

TEST_F(SearchCourseTest, TrialsThatAreComparedHaveTheSameSamples) {
  const Study study = parse_study(
      "name: s\nexperiment: exp.yaml\nsearch: halving\nbudget: {samples: 10 * batch.global}\n"
      "vary: {batch.global: [64, 128]}\n",
      path("s.yaml"), {"data.validation=some/validation"});
  expect_contains(message_of([&] { searches_of(study, make_trials(study)); }),
                  "budget.samples is 640 for trial unchanged and 1280 for trial global-128");
}

TEST_F(SearchCourseTest, NeedsABudgetAndValidationData) {
  const auto refusal = [&](const std::string& text) {
    return message_of([&] {
      const Study study = parse_study("name: s\nexperiment: exp.yaml\nsearch: halving\n" + text, path("s.yaml"), {});
      searches_of(study, make_trials(study));
    });
  };
  expect_contains(refusal(""), "search: halving without a budget, expected budget: {samples: ...}");
  expect_contains(refusal("budget: {samples: 640}\n"), "trial unchanged has no data.validation");
  study_.emplace(parse_study("name: s\nexperiment: exp.yaml\nsearch: halving\nbudget: {samples: 9, first: 9}\n",
                             path("s.yaml"), {"data.validation=some/validation"}));
  expect_contains(message_of([&] { searches_of(*study_, make_trials(*study_)); }),
                  "budget.first is 9 and budget.samples 9 for trial unchanged, expected less in the first rung");
}

}  // namespace
}  // namespace ringtrain
