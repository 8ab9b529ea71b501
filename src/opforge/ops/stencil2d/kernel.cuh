// SPDX-License-Identifier: Apache-2.0
// stencil2d: each pixel becomes the weighted sum of itself and its 4 or 8 neighbours.
//
//   forward   moves: reads x and writes y: the floor is a copy.
//             computes: 17 operations for each pixel, or 9 with five weights.
//   backward  moves: reads grad_y and x and writes grad_x: 1.5 copies.
//             computes: twice as much; half of it for the gradient of the weights.
//
// Every pixel is needed by nine threads. So a block first loads a tile of the image, with a rim of
// one pixel, to shared memory: each pixel is read from memory once. Where the rim lies outside of
// the image, it gets the values that the boundary stands for, so that the sums need not know where
// they are.
//
//   + rim + rim + rim +     a thread owns N neighbouring pixels (a 16-byte vector) in some rows.
//   r                 r     It walks down its rows and keeps the last three, a window, in
//   i   t0  t1  t2    i     registers; pixels beside its own come from its neighbours' registers
//   m   t3  t4  t5    m     or from the tile.
//   + rim + rim + rim +
//
//   stencil            the forward                                             (forward.cuh)
//   stencil_backward   grad_x of a tile, and what the tile adds to each weight (backward.cuh)
//   sum_weights        adds up what the blocks found, in a second small launch
#pragma once

#include "backward.cuh"
#include "forward.cuh"
