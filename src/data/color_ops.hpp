// Changes of colour and place on 8-bit RGB, each with the bytes that torchvision 0.28 gives for a
// Pillow 12 image (tests/parity/augment_parity.py compares them). gaussian_blur is the exception:
// see there.
//
// All work in place and draw nothing. Thread-safe on different pictures.
#pragma once

#include <array>
#include <cstdint>

#include "data/resample.hpp"

namespace orchard::data {

using Rgb = std::array<std::uint8_t, 3>;

// RGB pixels that may be changed, rows of width * 3 bytes without padding. At most 16384 pixels a
// side, beyond which Pillow leaves its fixed point in the geometric ones.
struct Canvas {
  std::uint8_t* rgb = nullptr;
  int width = 0;
  int height = 0;
};

// --- blends: factor 1 keeps the picture, 0 gives the other one, above 1 goes away from it ---
void adjust_brightness(Canvas canvas, double factor);  // the other one is black
void adjust_contrast(Canvas canvas, double factor);    // the mean of the grey values, everywhere
void adjust_saturation(Canvas canvas, double factor);  // the grey picture
void adjust_sharpness(Canvas canvas, double factor);   // smoothed by 3x3; its border stays as it is

// --- tables of 256 values ---
void posterize(Canvas canvas, int bits);         // bits kept of each value, 0..8
void solarize(Canvas canvas, double threshold);  // inverts what is not below it
void autocontrast(Canvas canvas);                // each channel stretched to 0..255
void equalize(Canvas canvas);                    // each channel's histogram made flat
void invert(Canvas canvas);

// --- colour ---
// Turns the hue in Pillow's 8-bit HSV. turns: -0.5..0.5, cut to steps of 1/255.
void adjust_hue(Canvas canvas, double turns);
void grayscale(Canvas canvas);  // ITU-R 601-2, in all three channels

// torchvision's blur with a square kernel, reflecting at the border. It convolves with the whole
// kernel in float32, in an order that depends on the machine; here the rows and columns are summed
// one after the other. Neither errs by more than 5e-4, so a byte may differ by one where the
// exact value is that close to a half (12 of 2.5 million in the test). kernel_px: odd, below twice
// the shorter side; sigma in pixels.
void gaussian_blur(Canvas canvas, int kernel_px, double sigma);

// --- places: nearest neighbour, `fill` where nothing was ---
void shear_x(Canvas canvas, double slope, Rgb fill);  // about the upper left corner, as AutoAugment
void shear_y(Canvas canvas, double slope, Rgb fill);
void translate(Canvas canvas, int right_px, int down_px, Rgb fill);
void rotate(Canvas canvas, double degrees, Rgb fill);  // counter-clockwise about the centre
void flip_vertical(Canvas canvas);
void fill_box(Canvas canvas, const Box& box, Rgb fill);  // the box lies within

}  // namespace orchard::data
