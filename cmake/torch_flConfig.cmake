# find_package(torch_fl) for adapters: an interface target with the C ABI header. Knows no torch.
#   set(torch_fl_DIR "$(flagos-torch-fl env --cmake-dir)")
get_filename_component(_torch_fl_root "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET torch_fl::adapter)
  add_library(torch_fl::adapter INTERFACE IMPORTED)
  set_target_properties(torch_fl::adapter PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${_torch_fl_root}/include")
endif()
