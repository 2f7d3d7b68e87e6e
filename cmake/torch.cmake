# LibTorch as the target `torch` (with `torch_cuda` beside it when it was built with CUDA), found through
# Torch_DIR or CMAKE_PREFIX_PATH.
#
# A build without CUDA is found by its own package. The package of a build with CUDA stops unless the
# whole CUDA toolkit is installed, although the wheel brings every library that it uses. Our code needs
# only CUDA's headers on top, so there the targets are made here.

find_path(Torch_DIR TorchConfig.cmake
  HINTS ENV Torch_DIR ${CMAKE_PREFIX_PATH} ENV CMAKE_PREFIX_PATH
  PATH_SUFFIXES Torch share/cmake/Torch cmake/Torch lib/cmake/Torch)
if(NOT Torch_DIR)
  message(FATAL_ERROR
    "LibTorch is not found: no TorchConfig.cmake in Torch_DIR or CMAKE_PREFIX_PATH. "
    "Run scripts/setup, which installs it, then: source build/env.sh")
endif()
get_filename_component(torch_root "${Torch_DIR}/../../.." ABSOLUTE)

if(NOT EXISTS "${torch_root}/lib/libtorch_cuda.so")
  find_package(Torch 2.11 REQUIRED)
  return()
endif()

set(PACKAGE_FIND_VERSION 2.11)
include("${Torch_DIR}/TorchConfigVersion.cmake")
if(NOT PACKAGE_VERSION_COMPATIBLE)
  message(FATAL_ERROR "LibTorch ${PACKAGE_VERSION} in ${torch_root} is too old: 2.11 or newer is needed")
endif()
set(Torch_VERSION "${PACKAGE_VERSION} with CUDA")

# CUDA's headers: beside the wheel (setup adds the packages of crt/ and nv/), or in an installed toolkit.
file(GLOB wheel_includes "${torch_root}/../nvidia/*/include")
find_path(ORCHARD_CUDA_INCLUDE_DIR crt/host_defines.h
  HINTS ${wheel_includes} ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda /opt/cuda
  PATH_SUFFIXES include)
find_path(ORCHARD_CUDA_CCCL_INCLUDE_DIR nv/target
  HINTS ${ORCHARD_CUDA_INCLUDE_DIR} ${wheel_includes} PATH_SUFFIXES cccl)
if(NOT ORCHARD_CUDA_INCLUDE_DIR OR NOT ORCHARD_CUDA_CCCL_INCLUDE_DIR)
  message(FATAL_ERROR
    "LibTorch in ${torch_root} has CUDA, but CUDA's headers (crt/host_defines.h, nv/target) are not found. "
    "Run scripts/setup, set CUDA_HOME to a CUDA toolkit, or take a LibTorch without CUDA.")
endif()

foreach(name IN ITEMS torch_cpu torch_cuda c10 c10_cuda)
  add_library(${name} SHARED IMPORTED)
  set_target_properties(${name} PROPERTIES IMPORTED_LOCATION "${torch_root}/lib/lib${name}.so")
endforeach()
add_library(torch INTERFACE IMPORTED)
target_include_directories(torch SYSTEM INTERFACE
  "${torch_root}/include" "${torch_root}/include/torch/csrc/api/include"
  "${ORCHARD_CUDA_INCLUDE_DIR}" "${ORCHARD_CUDA_CCCL_INCLUDE_DIR}" ${wheel_includes})
# No symbol of ours refers to libtorch_cuda: without the flag some linkers drop it, and CUDA with it.
target_link_libraries(torch INTERFACE torch_cpu torch_cuda c10 c10_cuda
  "-Wl,--no-as-needed,${torch_root}/lib/libtorch_cuda.so,--as-needed")
