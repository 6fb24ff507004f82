# The fast paths: every .c file here compiled once for each instruction level. GR_LEVEL is the suffix of its symbols
# and tells vec.h which registers there are. No file here may run before the level is known to work (../backend.c).
# Fuzz targets compute nothing: their build does without.
set(GPURUN_LEVEL_OBJECTS)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$" AND CMAKE_SIZEOF_VOID_P EQUAL 8 AND NOT GPURUN_FUZZ)
  file(GLOB FAST_SOURCES CONFIGURE_DEPENDS host/cpu/fast/*.c)
  set(AVX2_FLAGS -mavx2 -mfma -mf16c)
  set(AVX512_FLAGS ${AVX2_FLAGS} -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni)
  # Compilers take minutes over unrolled loops with sanitizers in them at -O3.
  if(GPURUN_SANITIZE)
    set(FAST_OPTIMISE -O1)
  else()
    set(FAST_OPTIMISE -O3)
  endif()
  function(gpurun_level name)
    add_library(gpurun_${name} OBJECT ${FAST_SOURCES})
    set_target_properties(gpurun_${name} PROPERTIES C_VISIBILITY_PRESET hidden)
    target_compile_definitions(gpurun_${name} PRIVATE GR_LEVEL=${name} GR_LEVEL_${name}=1)
    target_compile_options(gpurun_${name} PRIVATE ${FAST_OPTIMISE} -fno-trapping-math ${ARGN})
    target_include_directories(gpurun_${name} PRIVATE include host)
    target_link_libraries(gpurun_${name} PRIVATE gpurun_flags)
    list(APPEND GPURUN_LEVEL_OBJECTS $<TARGET_OBJECTS:gpurun_${name}>)
    set(GPURUN_LEVEL_OBJECTS ${GPURUN_LEVEL_OBJECTS} PARENT_SCOPE)
    target_compile_definitions(gpurun_objects PRIVATE GR_HAS_LEVEL_${name})
  endfunction()
  gpurun_level(avx2 ${AVX2_FLAGS})
  gpurun_level(avx512 ${AVX512_FLAGS})
  # bfloat16 products are a feature of their own: only bf16.c may use them, behind its own check.
  set_source_files_properties(host/cpu/fast/bf16.c PROPERTIES
    COMPILE_OPTIONS "$<$<STREQUAL:$<TARGET_PROPERTY:NAME>,gpurun_avx512>:-mavx512bf16>")
endif()
