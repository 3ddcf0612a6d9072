// The arithmetic of Winograd's F(2x2, 3x3) on vectors, whatever their lanes are: B^T d B of a 4 x 4 input tile,
// A^T m A back to 2 x 2 outputs, G w G^T of a 3 x 3 kernel, and the adjoints of the last two for the weight's gradient.
#pragma once
#include "gemm_kernel.h"

namespace ng {

constexpr int64_t kTilePlaces = 16;  // of a transformed tile

using TileVectors = Vector<float>[4][4];

inline void transform_input_tile(const TileVectors& d, TileVectors& out) {
  TileVectors half;
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    half[0][j] = d[0][j] - d[2][j];
    half[1][j] = d[1][j] + d[2][j];
    half[2][j] = d[2][j] - d[1][j];
    half[3][j] = d[1][j] - d[3][j];
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    out[i][0] = half[i][0] - half[i][2];
    out[i][1] = half[i][1] + half[i][2];
    out[i][2] = half[i][2] - half[i][1];
    out[i][3] = half[i][1] - half[i][3];
  }
}

inline void transform_output_tile(const TileVectors& m, Vector<float> (&y)[2][2]) {
  Vector<float> half[2][4];
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    half[0][j] = m[0][j] + m[1][j] + m[2][j];
    half[1][j] = m[1][j] - m[2][j] - m[3][j];
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    y[i][0] = half[i][0] + half[i][1] + half[i][2];
    y[i][1] = half[i][1] - half[i][2] - half[i][3];
  }
}

// A y A^T
inline void transform_gradient_tile(const Vector<float> (&y)[2][2], TileVectors& out) {
  Vector<float> half[4][2];
#pragma GCC unroll 2
  for (int j = 0; j < 2; ++j) {
    half[0][j] = y[0][j];
    half[1][j] = y[0][j] + y[1][j];
    half[2][j] = y[0][j] - y[1][j];
    half[3][j] = -y[1][j];
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    out[i][0] = half[i][0];
    out[i][1] = half[i][0] + half[i][1];
    out[i][2] = half[i][0] - half[i][1];
    out[i][3] = -half[i][1];
  }
}

inline void transform_weight_tile(const Vector<float> (&w)[9], TileVectors& out) {
  Vector<float> half[4][3];
#pragma GCC unroll 3
  for (int j = 0; j < 3; ++j) {
    const Vector<float> sum = w[j] + w[6 + j];
    half[0][j] = w[j];
    half[1][j] = (sum + w[3 + j]) * 0.5f;
    half[2][j] = (sum - w[3 + j]) * 0.5f;
    half[3][j] = w[6 + j];
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const Vector<float> sum = half[i][0] + half[i][2];
    out[i][0] = half[i][0];
    out[i][1] = (sum + half[i][1]) * 0.5f;
    out[i][2] = (sum - half[i][1]) * 0.5f;
    out[i][3] = half[i][2];
  }
}

// G^T u G
inline void transform_weight_gradient_tile(const TileVectors& u, Vector<float> (&w)[9]) {
  Vector<float> half[3][4];
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    half[0][j] = u[0][j] + (u[1][j] + u[2][j]) * 0.5f;
    half[1][j] = (u[1][j] - u[2][j]) * 0.5f;
    half[2][j] = (u[1][j] + u[2][j]) * 0.5f + u[3][j];
  }
#pragma GCC unroll 3
  for (int i = 0; i < 3; ++i) {
    w[3 * i] = half[i][0] + (half[i][1] + half[i][2]) * 0.5f;
    w[3 * i + 1] = (half[i][1] - half[i][2]) * 0.5f;
    w[3 * i + 2] = (half[i][1] + half[i][2]) * 0.5f + half[i][3];
  }
}

}  // namespace ng
