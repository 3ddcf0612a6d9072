// Registers the accelerator hooks with PyTorch.
#pragma once
namespace fl::bridge {
void register_hooks();
}
