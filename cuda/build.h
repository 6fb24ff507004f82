/* The kernels of a build: a table written by kernels/kernels.cmake, for the driver or for the
 * emulated device. */
#ifndef CUDA_BUILD_H
#define CUDA_BUILD_H

/* The code of one file of kernels/, as the driver loads it. */
struct gr_kernel_image {
    const char *name; /* "matmul_mv" */
    const void *data; /* a fatbin; of EMU the file's name, of PTX its texts */
};

/* "CUDA"; of the emulated device "EMU", or "PTX" with kernels of PTX: the name of the backend, and
 * devices are called by it. */
extern const char gr_cuda_kind[];

struct gr_cuda_build {
    const char *library; /* the driver's, for dlopen */
    const struct gr_kernel_image *image;
    int n_image;       /* 0: built without a CUDA compiler */
    const char *archs; /* architectures with code: "sm_80 sm_90a compute_80", compute_ being PTX */
    const char *nccl;  /* its library, for dlopen; NULL or "": built to do without */
    const char *cublaslt; /* its libraries, the first that is there is opened; likewise */
    int toolkit;          /* CUDA's version that the images are of (13000: nvcc 13.0), 0: of none */
};
extern const struct gr_cuda_build gr_cuda_build;

#endif
