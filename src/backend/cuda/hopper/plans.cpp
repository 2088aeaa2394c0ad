#include "backend/cuda/hopper/plans.h"

#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <filesystem>

#include "base/child_process.h"
#include "base/error.h"
#include "base/rounding.h"

namespace ringtrain::cuda::hopper {

namespace {

Element element(Type type) {
  return type == Type::bf16 ? Element::bf16 : type == Type::fp16 ? Element::fp16 : Element::fp32;
}

std::optional<Work> work_of(const DnnOperation& o) {
  if (o.prologue != Prologue::none) return std::nullopt;
  if (o.kind == DnnKind::convolution && o.epilogue == Epilogue::sums) return Work::forward_sums;
  if (o.kind == DnnKind::data_gradient && o.epilogue == Epilogue::relu_sums) return Work::gradient_sums;
  if (o.kind == DnnKind::data_gradient && o.epilogue == Epilogue::add_relu_sums) return Work::gradient_add_sums;
  if (o.kind == DnnKind::weight_gradient && o.epilogue == Epilogue::none) return Work::weight_gradient;
  return std::nullopt;
}

struct Plan final : DnnPlan {
  Plan(const DnnOperation& of, const Problem& its, const Library::Choice& chosen, std::string instance_name)
      : described(of), problem(its), choice(chosen), name(std::move(instance_name)) {}
  const DnnOperation& operation() const override { return described; }
  std::int64_t workspace_bytes() const override { return choice.workspace_bytes; }
  std::string engine() const override { return name; }
  DnnOperation described;
  Problem problem;
  Library::Choice choice;
  std::string name;
};

constexpr const char* no_library = "none";  // this value of RINGTRAIN_HOPPER_LIBRARY switches the library off

std::string library_path() {
  if (const char* named = std::getenv("RINGTRAIN_HOPPER_LIBRARY"); named != nullptr && *named != '\0') return named;
  return (std::filesystem::path(own_executable()).parent_path() / library_file).string();
}

}  // namespace

std::optional<Problem> problem_of(const DnnOperation& o, std::string* why) {
  const std::optional<Work> work = work_of(o);
  if (!work || o.type == Type::fp32) {
    if (why != nullptr) *why = "the library for Hopper has no kernel of this kind";
    return std::nullopt;
  }
  return Problem{.work = *work,
                 .type = element(o.type),
                 .result = element(o.result),
                 .n = o.n,
                 .c = o.c,
                 .h = o.h,
                 .w = o.w,
                 .k = o.k,
                 .r = o.r,
                 .stride = o.stride,
                 .padding = o.padding,
                 .groups = o.groups};
}

Tensors tensors_of(const DnnOperation& o, std::span<void* const> tensors) {
  const std::vector<DnnTensor> described = o.tensors();
  if (described.size() != tensors.size())
    throw Error(cat(o.key(), ": ", described.size(), " tensors, but ", tensors.size(), " addresses"));
  Tensors t;
  const bool weight = o.kind == DnnKind::weight_gradient;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    void* const at = tensors[i];
    switch (described[i].role) {
      case DnnRole::x:
        t.activation = at;
        break;
      case DnnRole::dy:
        (weight ? t.weight : t.activation) = at;
        break;
      case DnnRole::w:
        t.weight = at;
        break;
      case DnnRole::y:
      case DnnRole::dx:
      case DnnRole::dw:
        t.result = at;
        break;
      case DnnRole::scale:
        t.scale = static_cast<const float*>(at);
        break;
      case DnnRole::bias:
        t.bias = static_cast<const float*>(at);
        break;
      case DnnRole::shortcut:
        t.shortcut = at;
        break;
      case DnnRole::norm_input:
        t.norm_input = at;
        break;
      case DnnRole::output:
        t.output = at;
        break;
      case DnnRole::sum:
        t.sum_stride = described[i].dimensions[1];
        t.sum = static_cast<float*>(at);
        t.sum_other = t.sum + t.sum_stride / 2;
        break;
      case DnnRole::alpha:
        t.alpha = *static_cast<const float*>(at);
        break;
      case DnnRole::sum_other:
      case DnnRole::a:
      case DnnRole::b:
        throw Error(cat(o.key(), ": tensor ", i, " is not part of this operation"));
    }
  }
  return t;
}

std::unique_ptr<Library> Library::open(const std::string& path, std::string& why) {
  if (path == no_library) {
    why = "switched off by RINGTRAIN_HOPPER_LIBRARY";
    return nullptr;
  }
  if (!std::filesystem::exists(path)) {
    why = cat("there is no ", path, " (make hopper builds it)");
    return nullptr;
  }
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // the library stays open until the process ends
  if (handle == nullptr) {
    why = cat(path, " cannot be opened: ", dlerror());
    return nullptr;
  }
  const auto symbol = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    if (function == nullptr) why = cat(path, " has no ", name);
    return function != nullptr;
  };
  std::unique_ptr<Library> library(new Library);
  decltype(&ringtrain_hopper_version) version = nullptr;
  decltype(&ringtrain_hopper_instances) count = nullptr;
  decltype(&ringtrain_hopper_describe) describe = nullptr;
  if (!symbol("ringtrain_hopper_version", version) || !symbol("ringtrain_hopper_instances", count) ||
      !symbol("ringtrain_hopper_describe", describe) ||
      !symbol("ringtrain_hopper_can_implement", library->can_implement_) ||
      !symbol("ringtrain_hopper_launch", library->launch_))
    return nullptr;
  if (version() != interface_version) {
    why = cat(path, " is of another version of ringtrain (interface ", version(), ", not ", interface_version,
              "): build it again (make hopper)");
    return nullptr;
  }
  library->instances_.resize(static_cast<std::size_t>(count()));
  for (int i = 0; i < count(); ++i) describe(i, &library->instances_[static_cast<std::size_t>(i)]);
  return library;
}

const Library* Library::find(std::string* why) {
  static std::map<std::string, std::pair<std::unique_ptr<Library>, std::string>> opened;
  const std::string path = library_path();
  const auto [place, added] = opened.try_emplace(path);
  auto& [library, reason] = place->second;
  if (added) library = open(path, reason);
  if (why != nullptr) *why = reason;
  return library.get();
}

std::optional<Library::Choice> Library::choose(const Problem& problem, std::string* why) const {
  std::optional<Choice> best;
  std::int64_t least = 0;
  for (std::size_t i = 0; i < instances_.size(); ++i) {
    const Description& d = instances_[i];
    if (d.work != problem.work || d.type != problem.type) continue;
    Choice choice{static_cast<int>(i), 0};
    std::array<char, 400> text{};
    if (can_implement_(choice.instance, &problem, &choice.workspace_bytes, text.data(), text.size()) != 0) {
      if (why != nullptr) *why = text.data();
      continue;
    }
    // Counts the columns that the tiles cover, filled or not. Among equal counts the wider tile wins.
    const std::int64_t columns = round_up(result_channels(problem), d.tile_columns);
    const bool wider = best && d.tile_columns > instances_[static_cast<std::size_t>(best->instance)].tile_columns;
    if (best && !(columns < least || (columns == least && wider))) continue;
    best = choice;
    least = columns;
  }
  if (best && why != nullptr) why->clear();
  return best;
}

void Library::launch(int instance, const Problem& problem, const Tensors& tensors, void* workspace,
                     void* stream) const {
  std::array<char, 400> why{};
  if (launch_(instance, &problem, &tensors, workspace, stream, why.data(), why.size()) != 0)
    throw Error(cat("a convolution of the library for Hopper failed: ", why.data()));
}

Plans::Known Plans::make(const DnnOperation& operation) const {
  Known known;
  if (!runs_on(compute_capability_)) {
    known.why = cat("kernels for compute capability 9.0 do not run on ", compute_capability_ / 10, ".",
                    compute_capability_ % 10);
    return known;
  }
  const std::optional<Problem> problem = problem_of(operation, &known.why);
  if (!problem) return known;
  const Library* library = Library::find(&known.why);
  if (library == nullptr) return known;
  if (const auto choice = library->choose(*problem, &known.why))
    known.plan = std::make_unique<Plan>(operation, *problem, *choice,
                                        library->instances()[static_cast<std::size_t>(choice->instance)].name);
  return known;
}

const DnnPlan* Plans::find(const DnnOperation& operation, std::string* why) {
  const auto [place, added] = known_.try_emplace(operation.key());
  if (added) place->second = make(operation);
  if (why != nullptr) *why = place->second.why;
  return place->second.plan.get();
}

void Plans::run(const DnnPlan& plan, std::span<void* const> tensors, void* workspace, void* stream) {
  const auto& own = static_cast<const Plan&>(plan);
  std::string why;
  const Library* library = Library::find(&why);
  if (library == nullptr) throw Error(why);
  library->launch(own.choice.instance, own.problem, tensors_of(own.described, tensors), workspace, stream);
}

}  // namespace ringtrain::cuda::hopper
