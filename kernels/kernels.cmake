# The kernels: each file of kernels/ becomes a fatbin, and all of them one object of the library with a table
# (cuda/build.h). Without a CUDA compiler the table is empty.
# The targets of this machine's GPUs, where there are any; their driver compiles PTX for newer ones.
execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
                OUTPUT_VARIABLE here RESULT_VARIABLE status ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
set(archs "")
if(status EQUAL 0)
  string(REGEX MATCHALL "[0-9]+\\.[0-9]+" here "${here}")
  foreach(cc ${here})
    if(cc MATCHES "^8")
      list(APPEND archs 80)
    elseif(cc STREQUAL "9.0")
      list(APPEND archs 90a)
    endif()
  endforeach()
  list(REMOVE_DUPLICATES archs)
endif()
if(NOT archs)
  set(archs 80 90a)
endif()
set(GPURUN_CUDA_ARCHS "${archs}" CACHE STRING "Architectures to compile kernels for; 90a alone builds fastest")
option(GPURUN_CUDA_PTX "Keep PTX as well, which drivers compile for devices newer than those" ON)
set(GPURUN_CUDA_WATCHDOG OFF CACHE STRING
    "Seconds after which a kernel's wait within a block is a fault and ends the launch; OFF: it waits for ever")
set(watchdog "")
if(GPURUN_CUDA_WATCHDOG MATCHES "^[1-9][0-9]?[0-9]?$")
  set(watchdog -DGR_WATCHDOG=${GPURUN_CUDA_WATCHDOG})
elseif(GPURUN_CUDA_WATCHDOG)
  message(FATAL_ERROR "GPURUN_CUDA_WATCHDOG is '${GPURUN_CUDA_WATCHDOG}': OFF or seconds, 1 to 999, are expected")
endif()

file(GLOB KERNEL_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/*.cu)
list(SORT KERNEL_SOURCES)

# The toolkit's version as drivers count theirs: 13000 is 13.0.
set(toolkit 0)
if(GPURUN_NVCC AND NOT GPURUN_CUDA STREQUAL "OFF")
  execute_process(COMMAND ${GPURUN_NVCC} --version OUTPUT_VARIABLE version)
  if(NOT version MATCHES "release ([0-9]+)\\.([0-9]+)")
    message(FATAL_ERROR "${GPURUN_NVCC} --version names no release: is it nvcc?")
  endif()
  math(EXPR toolkit "${CMAKE_MATCH_1} * 1000 + ${CMAKE_MATCH_2} * 10")
endif()

# gpurun_kernel_table(file kind library archs name...): writes `file` with the table of these images; each begins at
# the symbol gr_image_<name>. NCCL and cuBLASLt are the emulated device's own (kinds EMU and PTX), or the system's.
function(gpurun_kernel_table file kind library archs)
  set(nccl "")
  set(cublaslt "libcublasLt.so.13 libcublasLt.so.12")
  if(NOT kind STREQUAL "CUDA")
    set(nccl ${library})
    set(cublaslt ${library})
    set(toolkit 0)
  elseif(GPURUN_NCCL)
    set(nccl libnccl.so.2)
  endif()
  set(declare "")
  set(rows "")
  foreach(name ${ARGN})
    string(APPEND declare "extern const char gr_image_${name}[];\n")
    string(APPEND rows "    {\"${name}\", gr_image_${name}},\n")
  endforeach()
  list(LENGTH ARGN n)
  file(CONFIGURE OUTPUT ${file} CONTENT "#include \"cuda/build.h\"\n
${declare}
static const struct gr_kernel_image images[] = {
${rows}    {0, 0},
};
const char gr_cuda_kind[] = \"${kind}\";
const struct gr_cuda_build gr_cuda_build = {\"${library}\", images, ${n}, \"${archs}\",
    \"${nccl}\", \"${cublaslt}\", ${toolkit}};
")
endfunction()

# gpurun_images_assembly(folder file ending names...): writes folder/file, which has these images of `folder`.
function(gpurun_images_assembly folder file ending)
  set(images "")
  set(assembly "    .section .rodata\n")
  foreach(name ${ARGN})
    set(image ${folder}/${name}.${ending})
    list(APPEND images ${image})
    string(APPEND assembly "    .balign 64\n    .globl gr_image_${name}\n    .hidden gr_image_${name}\ngr_image_${name}:\n"
      "    .incbin \"${image}\"\n")
  endforeach()
  string(APPEND assembly "    .section .note.GNU-stack,\"\",@progbits\n")
  file(CONFIGURE OUTPUT ${folder}/${file} CONTENT "${assembly}")
  set_source_files_properties(${folder}/${file} PROPERTIES OBJECT_DEPENDS "${images}")
endfunction()

# gpurun_kernel_images(folder names sources...): a fatbin in `folder` for each source, all of them in folder/images.S;
# names: of those that there is an architecture for, none without a CUDA compiler. Beside each fatbin NAME.texts: the PTX
# that its machine code was made of, one text for each architecture with a zero behind it, behind the line "// texts: N";
# all of them in folder/texts.S.
function(gpurun_kernel_images folder names)
  set(${names} "" PARENT_SCOPE)
  if(NOT GPURUN_NVCC OR GPURUN_CUDA STREQUAL "OFF")
    return()
  endif()
  set(made "")
  foreach(source ${ARGN})
    get_filename_component(name ${source} NAME_WE)
    set(gencode "")
    foreach(arch ${GPURUN_CUDA_ARCHS})
      if(arch STREQUAL "90a" OR NOT name MATCHES "_sm90$")
        list(APPEND gencode -gencode arch=compute_${arch},code=sm_${arch})
      endif()
    endforeach()
    if(GPURUN_CUDA_PTX AND NOT name MATCHES "_sm90$")
      list(APPEND gencode -gencode arch=compute_80,code=compute_80)
    endif()
    if(NOT gencode)
      continue() # wgmma alone, and no sm_90a wanted
    endif()
    set(image ${folder}/${name}.fatbin)
    set(keep ${folder}/${name}.keep)
    # ptxas tells registers, stack and spills: scripts/gpu/ptxas reads them
    add_custom_command(OUTPUT ${image} ${folder}/${name}.texts
      COMMAND ${CMAKE_COMMAND} -E make_directory ${keep}
      COMMAND sh -c "\"$@\" >$0 2>&1 || { cat $0; exit 1; }" ${image}.log
        ${GPURUN_NVCC} -std=c++17 -O3 -lineinfo -fatbin -I${PROJECT_SOURCE_DIR} -I${PROJECT_SOURCE_DIR}/include
        ${watchdog} ${gencode} -Xptxas -v -MMD -MF ${image}.d -keep -keep-dir ${keep} -o ${image} ${source}
      COMMAND sh -c "set -e; exec >$1.texts; set -- $0/*.ptx; echo // texts: $#; for text; do cat $text; printf '\\0'; done; rm -r $0"
        ${keep} ${folder}/${name}
      DEPENDS ${source} DEPFILE ${image}.d
      COMMENT "nvcc ${name}.cu" VERBATIM)
    list(APPEND made ${name})
  endforeach()
  gpurun_images_assembly(${folder} images.S fatbin ${made})
  gpurun_images_assembly(${folder} texts.S texts ${made})
  set(${names} ${made} PARENT_SCOPE)
endfunction()

gpurun_kernel_images(${PROJECT_BINARY_DIR}/kernels kernel_names ${KERNEL_SOURCES})
string(REPLACE ";" " sm_" archs "sm_${GPURUN_CUDA_ARCHS}")
if(GPURUN_CUDA_PTX)
  string(APPEND archs " compute_80")
endif()
gpurun_kernel_table(${PROJECT_BINARY_DIR}/kernels/build.c CUDA libcuda.so.1 "${archs}" ${kernel_names})

add_library(gpurun_kernels OBJECT ${PROJECT_BINARY_DIR}/kernels/build.c)
set_target_properties(gpurun_kernels PROPERTIES C_VISIBILITY_PRESET hidden)
target_include_directories(gpurun_kernels PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
if(kernel_names)
  target_sources(gpurun_kernels PRIVATE ${PROJECT_BINARY_DIR}/kernels/images.S)
endif()
