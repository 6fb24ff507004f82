# find_package(gpurun): gpurun::gpurun (shared) and gpurun::gpurun_static.
include(CMakeFindDependencyMacro)
find_dependency(Threads)
find_dependency(PkgConfig)
pkg_check_modules(GPURUN_DEPS REQUIRED IMPORTED_TARGET libpcre2-8 libutf8proc jansson)
include(${CMAKE_CURRENT_LIST_DIR}/gpurunTargets.cmake)
