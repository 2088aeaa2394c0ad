#include "checkpoint/foreign_weights.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/text.h"
#include "checkpoint/safetensors.h"

namespace ringtrain {
namespace {

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

std::string safetensors_of(const std::string& path) {
  return python_text(std::filesystem::path(path).replace_extension(".safetensors").string());
}

// The weights may be anywhere in the file: {'model': ...}, {'state_dict': ...}. The file may also hold the
// optimizer's tensors.
[[noreturn]] void refuse_torch(const std::string& path) {
  throw Error(
      cat(path, ": is a file of torch.save, not safetensors"),
      cat("a pickle can run any code, so only PyTorch reads it; convert it once, in Python:\n"
          "    import torch; from safetensors.torch import save_file\n"
          "    def weights(d):  # the largest dictionary of tensors in the file, apart from the optimizer's\n"
          "        own = {k: v.clone().contiguous() for k, v in d.items() if isinstance(k, str) and "
          "torch.is_tensor(v)}\n"
          "        inner = [weights(v) for k, v in d.items() if isinstance(v, dict) and 'optim' not in str(k)]\n"
          "        return max([own, *inner], key=len)\n"
          "    save_file(weights(torch.load(",
          python_text(path), ", map_location='cpu', weights_only=True)), ", safetensors_of(path), ")"));
}

[[noreturn]] void refuse(const std::string& path, const std::string& format, const std::string& hint) {
  throw Error(cat(path, ": is ", format, ", not safetensors"), hint);
}

constexpr const char* other_framework =
    "its tensors have other names and another order of dimensions than PyTorch's: load it into a PyTorch model of the "
    "same layers, and write that model's state_dict() with safetensors.torch.save_file";

[[noreturn]] void refuse_zip(const std::string& path, const std::string& end) {
  const std::vector<std::string> names = members_of_zip(end);
  const auto any = [&](const auto& fits) { return std::ranges::any_of(names, fits); };
  if (any([](const std::string& n) { return n == "model.weights.h5"; })) refuse(path, "a Keras file", other_framework);
  if (any([](const std::string& n) { return n.ends_with("/constants.pkl"); }) &&
      any([](const std::string& n) { return has(n, "/code/"); }))
    refuse(path, "a TorchScript file (torch.jit.save)",
           cat("convert it once, in Python:\n    import torch; from safetensors.torch import save_file\n"
               "    save_file({k: v.clone().contiguous() for k, v in torch.jit.load(",
               python_text(path), ", map_location='cpu').state_dict().items()}, ", safetensors_of(path), ")"));
  if (any([](const std::string& n) { return n == "data.pkl" || n.ends_with("/data.pkl"); })) refuse_torch(path);
  if (any([](const std::string& n) { return n.ends_with(".npy"); }))
    refuse(path, "a NumPy .npz file",
           cat("if its arrays have PyTorch's names and shapes, convert it once, in Python:\n"
               "    import numpy; from safetensors.numpy import save_file\n"
               "    save_file({k: numpy.ascontiguousarray(v) for k, v in numpy.load(",
               python_text(path), ").items()}, ", safetensors_of(path), ")"));
  refuse(path, "a zip file", "unpack it, and give the .safetensors file in it");
}

// A model that is cut into several safetensors files has a JSON file that says which file has which tensor.
bool is_index_of_shards(const std::string& path, const std::string& start) {
  return path.ends_with(".safetensors.index.json") || (start.starts_with("{") && has(start, "\"weight_map\""));
}

[[noreturn]] void refuse_index_of_shards(const std::string& path) {
  refuse(path, "the index of a model that is cut into several files",
         cat("join the files that it names, in Python:\n"
             "    import json, os; from safetensors.torch import load_file, save_file\n"
             "    index = ",
             python_text(path),
             "; folder = os.path.dirname(index)\n"
             "    names = sorted(set(json.load(open(index))['weight_map'].values()))\n"
             "    save_file({k: v for n in names for k, v in load_file(os.path.join(folder, n)).items()}, "
             "os.path.join(folder, 'joined.safetensors'))"));
}

// Flax writes a map of maps with short names as keys: its first bytes are a small map and a short text.
bool is_flax(const std::string& start) {
  if (start.size() < 3) return false;
  const auto first = static_cast<unsigned char>(start[0]), second = static_cast<unsigned char>(start[1]);
  const std::size_t length = second & 0x1f;
  if ((first & 0xf0) != 0x80 || (second & 0xe0) != 0xa0 || length == 0 || start.size() < 2 + length) return false;
  return std::ranges::all_of(start.substr(2, length), [](char c) { return c > ' ' && c <= '~'; });
}

}  // namespace

void refuse_other_formats(const std::string& path, const std::string& start, const std::string& end) {
  if (start.starts_with("\x89HDF")) {
    const std::string all = start + end;
    const bool is_keras3 = path.ends_with(".weights.h5") || (has(all, "layers") && has(all, "vars"));
    if (is_keras3 || has(all, "keras_version") || has(all, "layer_names"))
      refuse(path, "an HDF5 file of Keras", other_framework);
    refuse(path, "an HDF5 file",
           "only a checkpoint of ringtrain becomes one: bin/ringtrain export CHECKPOINT.h5 --out FILE.safetensors");
  }
  if (start.starts_with("PK\x03\x04")) refuse_zip(path, end);
  if (is_index_of_shards(path, start)) refuse_index_of_shards(path);
  const bool is_pickle = start.size() > 2 && start[0] == '\x80' && start[1] >= 2 && start[1] <= 5;
  // Files of torch.save before version 1.6 begin with this number.
  if (is_pickle && start.compare(2, 2, "\x8a\x0a") == 0) refuse_torch(path);
  std::uint64_t length = 0;
  if (start.size() >= sizeof length) std::memcpy(&length, start.data(), sizeof length);
  if (length <= longest_safetensors_header) return;  // it may be safetensors
  if (const ForeignFile other = foreign_file(start)) refuse(path, other.format, other.advice);
  if (is_flax(start)) refuse(path, "a msgpack file of Flax", other_framework);
  if (is_pickle)
    refuse(path, "a Python pickle",
           "a pickle can run any code, so this program does not read it; write its arrays with "
           "safetensors.numpy.save_file or safetensors.torch.save_file in the program that made it");
  if (start.starts_with("\x93NUMPY"))
    refuse(path, "one NumPy array (.npy)",
           "a model has several tensors with names: write them with "
           "safetensors.numpy.save_file({name: array, ...}, FILE)");
  if (start.starts_with("GGUF")) refuse(path, "a GGUF file", other_framework);
  if (start.compare(4, 4, "TFL3") == 0) refuse(path, "a TensorFlow Lite file", other_framework);
  if (end.ends_with("\x57\xfb\x80\x8b\x24\x75\x47\xdb"))
    refuse(path, "the index of a TensorFlow checkpoint", other_framework);
  if (start[0] == '\x08' && (start[2] == '\x12' || start[2] == '\x1a' || start[2] == '\x22' || start[2] == '\x3a')) {
    if (start[2] == '\x12' && has(start, "saved_model_")) refuse(path, "a TensorFlow SavedModel", other_framework);
    refuse(path, "an ONNX file (or another protobuf)",
           "give the checkpoint of PyTorch from which it was exported: the names in ONNX may differ from PyTorch's");
  }
}

}  // namespace ringtrain
