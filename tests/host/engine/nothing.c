/* Functions that close and free accept NULL. */
#include <criterion/criterion.h>

#include "gpurun.h"

Test(nothing, is_closed)
{
    struct gr_model *model = NULL;
    struct gr_session *session = NULL;
    struct gr_detok *detok = NULL;
    struct gr_sampler *sampler = NULL;
    struct gr_world *world = NULL;
    struct gr_imatrix *imatrix = NULL;
    for (int given = 0; given < 2; given++) {
        gr_session_close(given ? &session : NULL);
        gr_model_close(given ? &model : NULL);
        gr_detok_free(given ? &detok : NULL);
        gr_sampler_free(given ? &sampler : NULL);
        gr_imatrix_free(given ? &imatrix : NULL);
        cr_expect_eq(gr_world_close(given ? &world : NULL, 17), 17);
    }
    gr_free_ids(NULL);
    gr_state_free(NULL);
}
