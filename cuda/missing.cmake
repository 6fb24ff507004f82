# Operations whose launcher no file cuda/launch_*.c defines yet: they are refused. Goes when all are there.
file(GLOB launchers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cuda/launch_*.c)
set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${launchers})
set(there "")
foreach(file ${launchers})
  file(STRINGS ${file} lines REGEX "^int gr_cuda_[a-z_]+\\(")
  string(REGEX REPLACE "\\([^;]*" "" lines "${lines}")
  list(APPEND there ${lines})
endforeach()
file(STRINGS ${PROJECT_SOURCE_DIR}/include/gr/op.def operations REGEX "^OP\\(")
set(missing "")
foreach(line ${operations})
  if(line MATCHES "^OP\\([A-Z0-9_]+, ([a-z0-9_]+),")
    set(name ${CMAKE_MATCH_1})
    if(NOT "int gr_cuda_${name}" IN_LIST there)
      string(APPEND missing "MISSING(${name}, const struct gr_args_${name} *a)\n")
    endif()
  endif()
endforeach()
if(NOT "int gr_cuda_pack" IN_LIST there)
  string(APPEND missing "MISSING(pack, const struct gr_ten *a, struct gr_ten *b)\n")
endif()
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/missing_launchers.c CONTENT "#include \"cuda/launch.h\"
#include \"gr/status.h\"
#define MISSING(name, ...) int gr_cuda_##name(struct gr_launcher *l, __VA_ARGS__) \\
    { (void)l, (void)a; return gr_fail(GR_E_UNSUPPORTED, #name \": not written for the GPU yet\"); }
${missing}")
target_sources(gpurun_objects PRIVATE ${PROJECT_BINARY_DIR}/missing_launchers.c)
