// The configuration of a run: plain structs with their defaults in place.
//
// Every struct lists its fields once, in `fields`. From that one list come strict reading of JSON,
// the command line's `--set a.b=c`, printing, the JSON Schema, the table in the README and the
// check of what may change when a run is resumed (see config/load.hpp and config/describe.hpp).
//
// Knows nothing of data, devices or LibTorch: a config loads on a machine that has none of them.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace orchard::config {

// Whether a run may be resumed with another value than the one it was started with.
enum class OnResume { Same, MayChange };

// What is known of a field beside its type and default.
struct Field {
  const char* key;
  const char* help;
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  OnResume on_resume = OnResume::Same;
};

// --- closed choices; the texts are the JSON values ---
enum class Interpolation { Bilinear, Bicubic };
enum class AugmentPolicy { None, RandAugment, TrivialAugmentWide, AutoAugment };
enum class BadImage { Skip, Fail };
enum class ExifOrientation { Ignore, Apply };
enum class OptimizerName { Sgd };
enum class ScheduleName { Constant, Cosine, Step };

template <class Enum>
struct Choices;
template <>
struct Choices<Interpolation> {
  static constexpr std::array kAll = {std::pair{Interpolation::Bilinear, "bilinear"},
                                      std::pair{Interpolation::Bicubic, "bicubic"}};
};
template <>
struct Choices<AugmentPolicy> {
  static constexpr std::array kAll = {
      std::pair{AugmentPolicy::None, "none"}, std::pair{AugmentPolicy::RandAugment, "rand_augment"},
      std::pair{AugmentPolicy::TrivialAugmentWide, "trivial_augment_wide"},
      std::pair{AugmentPolicy::AutoAugment, "auto_augment"}};
};
template <>
struct Choices<BadImage> {
  static constexpr std::array kAll = {std::pair{BadImage::Skip, "skip"},
                                      std::pair{BadImage::Fail, "fail"}};
};
template <>
struct Choices<ExifOrientation> {
  static constexpr std::array kAll = {std::pair{ExifOrientation::Ignore, "ignore"},
                                      std::pair{ExifOrientation::Apply, "apply"}};
};
template <>
struct Choices<OptimizerName> {
  static constexpr std::array kAll = {std::pair{OptimizerName::Sgd, "sgd"}};
};
template <>
struct Choices<ScheduleName> {
  static constexpr std::array kAll = {std::pair{ScheduleName::Constant, "constant"},
                                      std::pair{ScheduleName::Cosine, "cosine"},
                                      std::pair{ScheduleName::Step, "step"}};
};

template <class Enum>
const char* choice_name(Enum value) {
  for (const auto& [choice, name] : Choices<Enum>::kAll) {
    if (choice == value) {
      return name;
    }
  }
  return "?";
}

// --- the structs ---
struct RunConfig {
  std::string dir = "runs";
  std::string name;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit(self.dir, Field{.key = "dir",
                          .help = "folder that holds the run folders",
                          .on_resume = OnResume::MayChange});
    visit(self.name, Field{.key = "name",
                           .help = "name of the run folder; empty: the config file's name. A taken "
                                   "name gets a number",
                           .on_resume = OnResume::MayChange});
  }
};

struct MemoryConfig {
  double fraction = 0.0;
  std::int64_t empty_cache_every_epochs = 1;
  std::int64_t empty_cache_every_steps = 0;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit(self.fraction,
          Field{.key = "fraction",
                .help =
                    "most device memory to use, as a share of what the device recommends (mps) or "
                    "has (cuda); 0: no limit",
                .min = 0,
                .max = 2,
                .on_resume = OnResume::MayChange});
    visit(self.empty_cache_every_epochs,
          Field{.key = "empty_cache_every_epochs",
                .help = "give cached device memory back after every n epochs; 0: never",
                .min = 0,
                .on_resume = OnResume::MayChange});
    visit(self.empty_cache_every_steps, Field{.key = "empty_cache_every_steps",
                                              .help = "the same after every n steps; 0: never",
                                              .min = 0,
                                              .on_resume = OnResume::MayChange});
  }
};

struct DataConfig {
  std::string root;
  std::int64_t workers = -1;
  std::int64_t prefetch_batches = 4;
  BadImage bad_image = BadImage::Skip;
  double max_bad_fraction = 0.05;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit(self.root,
          Field{.key = "root",
                .help = "folder with train/<class>/ and val/<class>/ (or valid, validation)",
                .on_resume = OnResume::MayChange});
    visit(self.workers, Field{.key = "workers",
                              .help = "threads that read images; -1: one per core, 0: none (the "
                                      "training thread reads). Results do not depend on it",
                              .min = -1,
                              .max = 256,
                              .on_resume = OnResume::MayChange});
    visit(self.prefetch_batches, Field{.key = "prefetch_batches",
                                       .help = "batches kept ready ahead of the training step",
                                       .min = 1,
                                       .max = 64,
                                       .on_resume = OnResume::MayChange});
    visit(
        self.bad_image,
        Field{.key = "bad_image",
              .help =
                  "an image that cannot be read: skip (counted and listed; training draws another "
                  "in its place, evaluation leaves it out) or fail"});
    visit(self.max_bad_fraction,
          Field{.key = "max_bad_fraction",
                .help = "with skip: stop when more than this share of a split is bad",
                .min = 0,
                .max = 1,
                .on_resume = OnResume::MayChange});
  }
};

// Training views of an image: torchvision's RandomResizedCrop and RandomHorizontalFlip, then what
// is switched on of the rest, in the order of the fields (data/augment.hpp). None of it may change
// when a run is resumed.
struct AugmentConfig {
  std::int64_t image_size_px = 224;
  std::array<double, 2> scale = {0.08, 1.0};
  std::array<double, 2> ratio = {3.0 / 4.0, 4.0 / 3.0};
  double hflip_prob = 0.5;
  Interpolation interpolation = Interpolation::Bilinear;
  double vflip_prob = 0.0;
  AugmentPolicy policy = AugmentPolicy::None;
  std::int64_t rand_augment_ops = 2;
  std::int64_t rand_augment_magnitude = 9;
  std::array<double, 4> color_jitter = {0.0, 0.0, 0.0, 0.0};
  double grayscale_prob = 0.0;
  double blur_prob = 0.0;
  std::int64_t blur_kernel_px = 23;
  std::array<double, 2> blur_sigma = {0.1, 2.0};
  double erasing_prob = 0.0;
  std::array<double, 2> erasing_scale = {0.02, 0.33};
  std::array<double, 2> erasing_ratio = {0.3, 3.3};

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit(self.image_size_px, Field{.key = "image_size_px",
                                    .help = "side of the square training image",
                                    .min = 8,
                                    .max = 4096});
    visit(self.scale,
          Field{.key = "scale",
                .help = "share of the image's area that a random crop takes, least and most",
                .min = 1e-6,
                .max = 1});
    visit(self.ratio, Field{.key = "ratio",
                            .help = "width/height of a random crop, least and most",
                            .min = 0.01,
                            .max = 100});
    visit(
        self.hflip_prob,
        Field{.key = "hflip_prob", .help = "probability of a horizontal flip", .min = 0, .max = 1});
    visit(self.interpolation,
          Field{.key = "interpolation", .help = "antialiased filter of the resize"});
    visit(self.vflip_prob,
          Field{.key = "vflip_prob", .help = "probability of a vertical flip", .min = 0, .max = 1});
    visit(self.policy, Field{.key = "policy",
                             .help = "operations drawn from a list, with torchvision's tables: one "
                                     "of trivial_augment_wide, a pair of auto_augment (the one "
                                     "learned on ImageNet) or rand_augment_ops of rand_augment"});
    visit(self.rand_augment_ops, Field{.key = "rand_augment_ops",
                                       .help = "rand_augment: operations on each image",
                                       .min = 1,
                                       .max = 16});
    visit(self.rand_augment_magnitude, Field{.key = "rand_augment_magnitude",
                                             .help = "rand_augment: strength of each operation",
                                             .min = 0,
                                             .max = 30});
    visit(self.color_jitter,
          Field{.key = "color_jitter",
                .help = "brightness, contrast, saturation: factors are drawn from 1 - this to 1 + "
                        "this (0 at least); hue: turns from -this to this (at most 0.5). In random "
                        "order",
                .min = 0,
                .max = 10});
    visit(self.grayscale_prob, Field{.key = "grayscale_prob",
                                     .help = "probability that the image is made grey",
                                     .min = 0,
                                     .max = 1});
    visit(self.blur_prob,
          Field{.key = "blur_prob", .help = "probability of a Gaussian blur", .min = 0, .max = 1});
    visit(self.blur_kernel_px, Field{.key = "blur_kernel_px",
                                     .help = "blur: side of the kernel; odd, below twice "
                                             "image_size_px",
                                     .min = 1,
                                     .max = 255});
    visit(self.blur_sigma, Field{.key = "blur_sigma",
                                 .help = "blur: standard deviation in pixels, least and most",
                                 .min = 0.01,
                                 .max = 100});
    visit(self.erasing_prob,
          Field{.key = "erasing_prob",
                .help = "probability that a rectangle is erased (to preprocess.mean, which is 0 "
                        "for the model)",
                .min = 0,
                .max = 1});
    visit(self.erasing_scale, Field{.key = "erasing_scale",
                                    .help = "share of the area that is erased, least and most",
                                    .min = 1e-6,
                                    .max = 1});
    visit(self.erasing_ratio, Field{.key = "erasing_ratio",
                                    .help = "height/width of what is erased, least and most",
                                    .min = 0.01,
                                    .max = 100});
  }
};

// What turns an image file into the model's input in evaluation, prediction and the exported model.
struct PreprocessConfig {
  std::int64_t resize_px = 256;
  std::int64_t crop_px = 224;
  Interpolation interpolation = Interpolation::Bilinear;
  ExifOrientation exif_orientation = ExifOrientation::Ignore;
  std::array<double, 3> mean = {0.485, 0.456, 0.406};
  std::array<double, 3> std = {0.229, 0.224, 0.225};

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit(self.resize_px, Field{.key = "resize_px",
                                .help = "the short side is resized to this",
                                .min = 8,
                                .max = 4096});
    visit(self.crop_px, Field{.key = "crop_px",
                              .help = "side of the centre crop; at most resize_px",
                              .min = 8,
                              .max = 4096});
    visit(self.interpolation,
          Field{.key = "interpolation", .help = "antialiased filter of the resize"});
    visit(
        self.exif_orientation,
        Field{.key = "exif_orientation",
              .help = "EXIF rotation, in training too: ignore (as torchvision does) or apply (for "
                      "photographs from phones)"});
    visit(self.mean, Field{.key = "mean",
                           .help = "mean of red, green and blue, of pixels in 0..1",
                           .min = 0,
                           .max = 1});
    visit(self.std, Field{.key = "std",
                          .help = "standard deviation of red, green and blue",
                          .min = 1e-3,
                          .max = 10});
  }
};

struct ModelConfig {
  std::string name = "resnet50";
  std::int64_t num_classes = 0;
  bool zero_init_residual = false;
  double width_mult = 1.0;
  double dropout = 0.2;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit(self.name, Field{.key = "name", .help = "a model of `orchard models`"});
    visit(self.num_classes,
          Field{.key = "num_classes",
                .help = "outputs of the model; 0: as many as the data has classes",
                .min = 0,
                .max = 10'000'000});
    visit(self.zero_init_residual,
          Field{.key = "zero_init_residual",
                .help = "ResNet: start the last norm of every block at zero"});
    visit(self.width_mult, Field{.key = "width_mult",
                                 .help = "scales every channel count, rounded to 8",
                                 .min = 0.05,
                                 .max = 4});
    visit(self.dropout, Field{.key = "dropout",
                              .help = "MobileNet: dropout before the classifier",
                              .min = 0,
                              .max = 0.95});
  }
};

struct OptimizerConfig {
  OptimizerName name = OptimizerName::Sgd;
  double lr = 0.1;
  std::int64_t lr_batch_size = 0;
  double momentum = 0.9;
  bool nesterov = false;
  double weight_decay = 1e-4;
  bool decay_norm_and_bias = true;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit(self.name, Field{.key = "name", .help = "the optimizer"});
    visit(self.lr, Field{.key = "lr", .help = "highest learning rate", .min = 0, .max = 1e6});
    visit(
        self.lr_batch_size,
        Field{.key = "lr_batch_size",
              .help =
                  "batch size that lr is meant for: lr is scaled by train.batch_size / this; 0: lr "
                  "is taken as it is",
              .min = 0});
    visit(self.momentum, Field{.key = "momentum", .help = "momentum", .min = 0, .max = 0.9999});
    visit(self.nesterov, Field{.key = "nesterov", .help = "Nesterov momentum"});
    visit(self.weight_decay,
          Field{.key = "weight_decay", .help = "L2 penalty", .min = 0, .max = 10});
    visit(self.decay_norm_and_bias,
          Field{.key = "decay_norm_and_bias",
                .help = "whether weight decay holds for norms and biases too"});
  }
};

struct ScheduleConfig {
  ScheduleName name = ScheduleName::Cosine;
  double warmup_epochs = 0;
  double warmup_start_factor = 0.01;
  double min_lr = 0;
  double step_epochs = 30;
  double step_gamma = 0.1;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit(self.name, Field{.key = "name", .help = "learning rate after the warm-up"});
    visit(self.warmup_epochs, Field{.key = "warmup_epochs",
                                    .help = "epochs of linear warm-up, changed at every step",
                                    .min = 0});
    visit(self.warmup_start_factor, Field{.key = "warmup_start_factor",
                                          .help = "the warm-up starts at this share of lr",
                                          .min = 0,
                                          .max = 1});
    visit(self.min_lr,
          Field{.key = "min_lr", .help = "cosine: the lowest learning rate", .min = 0});
    visit(self.step_epochs,
          Field{.key = "step_epochs", .help = "step: epochs between two drops", .min = 1e-3});
    visit(self.step_gamma,
          Field{.key = "step_gamma", .help = "step: factor of each drop", .min = 0, .max = 1});
  }
};

struct TrainConfig {
  std::int64_t epochs = 90;
  std::int64_t batch_size = 256;
  std::int64_t eval_batch_size = 0;
  std::int64_t eval_every_epochs = 1;
  double label_smoothing = 0.0;
  std::int64_t log_every_steps = 10;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit(self.epochs, Field{.key = "epochs", .help = "passes over the training images", .min = 1});
    visit(self.batch_size,
          Field{.key = "batch_size", .help = "training images per step", .min = 1, .max = 65536});
    visit(self.eval_batch_size, Field{.key = "eval_batch_size",
                                      .help = "images per evaluation step; 0: as batch_size",
                                      .min = 0,
                                      .max = 65536,
                                      .on_resume = OnResume::MayChange});
    visit(self.eval_every_epochs,
          Field{.key = "eval_every_epochs",
                .help = "evaluate after every n epochs (and after the last)",
                .min = 1,
                .on_resume = OnResume::MayChange});
    visit(self.label_smoothing, Field{.key = "label_smoothing",
                                      .help = "share of the target spread over all classes",
                                      .min = 0,
                                      .max = 0.999});
    visit(self.log_every_steps,
          Field{.key = "log_every_steps",
                .help = "steps between two looks at the loss (each waits for the device)",
                .min = 1,
                .on_resume = OnResume::MayChange});
  }
};

struct CheckpointConfig {
  std::int64_t every_epochs = 1;
  std::int64_t every_steps = 0;
  double every_minutes = 10;
  std::int64_t keep = 2;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit(self.every_epochs, Field{.key = "every_epochs",
                                   .help = "save after every n epochs (and after the last)",
                                   .min = 1,
                                   .on_resume = OnResume::MayChange});
    visit(self.every_steps, Field{.key = "every_steps",
                                  .help = "save in mid-epoch, after every n steps; 0: never",
                                  .min = 0,
                                  .on_resume = OnResume::MayChange});
    visit(self.every_minutes,
          Field{.key = "every_minutes",
                .help = "save in mid-epoch, when the last save is n minutes old; "
                        "0: never",
                .min = 0,
                .on_resume = OnResume::MayChange});
    visit(self.keep, Field{.key = "keep",
                           .help = "newest epoch checkpoints kept beside last and best",
                           .min = 0,
                           .max = 1000,
                           .on_resume = OnResume::MayChange});
  }
};

struct Config {
  std::int64_t seed = 1;
  std::string device = "auto";
  std::int64_t threads = 0;
  RunConfig run;
  DataConfig data;
  AugmentConfig augment;
  PreprocessConfig preprocess;
  ModelConfig model;
  OptimizerConfig optimizer;
  ScheduleConfig schedule;
  TrainConfig train;
  CheckpointConfig checkpoint;
  MemoryConfig memory;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit(
        self.seed,
        Field{
            .key = "seed", .help = "seeds weights, order and augmentation", .min = 0, .max = 9e15});
    visit(self.device, Field{.key = "device",
                             .help = "auto (cuda, else mps, else cpu), cuda, cuda:1, mps or cpu",
                             .on_resume = OnResume::MayChange});
    visit(self.threads, Field{.key = "threads",
                              .help = "CPU threads of LibTorch; 0: one per core",
                              .min = 0,
                              .max = 1024,
                              .on_resume = OnResume::MayChange});
    visit(self.run, Field{.key = "run", .help = "where the run is kept"});
    visit(self.data, Field{.key = "data", .help = "the images"});
    visit(self.augment, Field{.key = "augment", .help = "training views of an image"});
    visit(self.preprocess, Field{.key = "preprocess", .help = "evaluation view of an image"});
    visit(self.model, Field{.key = "model", .help = "the network"});
    visit(self.optimizer, Field{.key = "optimizer", .help = "the update rule"});
    visit(self.schedule, Field{.key = "schedule", .help = "the learning rate over time"});
    visit(self.train, Field{.key = "train", .help = "the loop"});
    visit(self.checkpoint, Field{.key = "checkpoint", .help = "what is saved when"});
    visit(self.memory, Field{.key = "memory", .help = "device memory"});
  }
};

}  // namespace orchard::config
