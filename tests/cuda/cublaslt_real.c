/* The real cuBLASLt, where there is one: it is opened, says its version, takes the descriptors of a
 * product and, on a machine without a GPU, refuses a handle with an error that is told. The
 * libraries are searched as the loader does, and then in the toolkit's usual place. Exits 77 where
 * there is none. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "cuda/cublaslt.h"
#include "gr/status.h"

#define SKIPPED 77
#define LIBRARIES                                                                                  \
    "libcublasLt.so.13 libcublasLt.so.12 /usr/local/cuda/lib64/libcublasLt.so.13 "                 \
    "/usr/local/cuda/lib64/libcublasLt.so.12"

static int n_failed;

static void expect(int is, const char *what)
{
    if (is)
        return;
    printf("%s is false: %s\n", what, gr_error());
    n_failed++;
}
#define EXPECT(is) expect(is, #is)

static void descriptors(const struct gr_cublaslt *lt)
{
    cublaslt_desc desc = NULL;
    cublaslt_layout layout = NULL;
    cublaslt_preference preference = NULL;
    const int32_t trans = CUBLASLT_OP_T;
    const uint32_t align = 16;
    const uint64_t workspace = 1 << 20;
    EXPECT(lt->desc_create(&desc, CUBLASLT_COMPUTE_F32, CUBLASLT_F32) == CUBLASLT_OK);
    EXPECT(lt->desc_set(desc, CUBLASLT_DESC_TRANS_A, &trans, sizeof trans) == CUBLASLT_OK);
    EXPECT(lt->desc_set(desc, CUBLASLT_DESC_TRANS_A, &trans, 1) == CUBLASLT_INVALID_VALUE);
    EXPECT(lt->layout_create(&layout, CUBLASLT_BF16, 64, 32, 64) == CUBLASLT_OK);
    EXPECT(lt->preference_create(&preference) == CUBLASLT_OK);
    EXPECT(lt->preference_set(preference, CUBLASLT_PREFER_WORKSPACE, &workspace,
                              sizeof workspace) == CUBLASLT_OK);
    for (int i = CUBLASLT_PREFER_ALIGN_A; i <= CUBLASLT_PREFER_ALIGN_D; i++)
        EXPECT(lt->preference_set(preference, i, &align, sizeof align) == CUBLASLT_OK);
    EXPECT(lt->preference_set(preference, CUBLASLT_PREFER_REDUCTIONS, &align, sizeof align) ==
           CUBLASLT_OK);
    EXPECT(lt->preference_destroy(preference) == CUBLASLT_OK);
    EXPECT(lt->layout_destroy(layout) == CUBLASLT_OK);
    EXPECT(lt->desc_destroy(desc) == CUBLASLT_OK);
}

int main(void)
{
    struct gr_cublaslt lt;
    cublaslt_handle handle = NULL;
    int version;
    int64_t start = gr_now_ns();
    if (gr_cublaslt_load(&lt, LIBRARIES, &version)) {
        printf("skipped: %s\n", gr_error());
        return SKIPPED;
    }
    printf("cuBLASLt %d, opened in %.1f ms\n", version, gr_seconds_since(start) * 1e3);
    descriptors(&lt);
    int status = lt.create(&handle);
    if (status == CUBLASLT_OK) {
        EXPECT(lt.destroy(handle) == CUBLASLT_OK);
    } else {
        EXPECT(gr_cublaslt_said(&lt, "CUDA0", GR_CUBLASLT_create, status) == GR_E_DEVICE);
        EXPECT(strncmp(gr_error(), "CUDA0: cublasLtCreate: ", 23) == 0);
        printf("%s\n", gr_error());
    }
    return n_failed != 0;
}
