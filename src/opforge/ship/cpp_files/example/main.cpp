// SPDX-License-Identifier: Apache-2.0
// A program without Python.
//
//   example                        prints the ops that it can call
//   example OP in.pt out.pt        calls an op, as in: example opforge::relu in.pt out.pt
//   example m.pt2 in.pt out.pt     runs a model that AOTInductor compiled
//
// in.pt is a list of arguments that torch.save wrote; torch.load reads the results from out.pt, a
// tuple. Where the op is known when the program is compiled, call its function in opforge_ops.h.
#include <opforge_ops.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

using Values = std::vector<c10::IValue>;

static Values read(const char* file) {
  std::ifstream in(file, std::ios::binary);
  TORCH_CHECK(in, "cannot read ", file);
  const c10::IValue list =
      torch::jit::pickle_load(std::vector<char>{std::istreambuf_iterator<char>(in), {}});
  const auto values = list.toListRef();
  return Values(values.begin(), values.end());
}

static void write(const char* file, Values values) {
  const std::vector<char> bytes =
      torch::jit::pickle_save(c10::ivalue::Tuple::create(std::move(values)));
  std::ofstream out(file, std::ios::binary);
  out.write(bytes.data(), std::streamsize(bytes.size()));
  TORCH_CHECK(out.flush(), "cannot write ", file);
}

static Values run(const std::string& what, Values arguments) {
  if (!what.ends_with(".pt2")) {
    opforge_ops::find(what.c_str()).callBoxed(arguments);  // replaces arguments by results
    return arguments;
  }
  torch::inductor::AOTIModelPackageLoader model(what);
  std::vector<at::Tensor> inputs;
  for (const c10::IValue& argument : arguments) inputs.push_back(argument.toTensor());
  const std::vector<at::Tensor> results = model.run(inputs);
  return Values(results.begin(), results.end());
}

int main(int count, char** words) {
  try {
    if (count == 4) {
      write(words[3], run(words[1], read(words[2])));
    } else {
      for (const char* name : opforge_ops::kNames)
        std::cout << opforge_ops::find(name).schema() << '\n';
    }
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << '\n';
    return 1;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
