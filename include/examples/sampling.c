/* Draws tokens as the model's file recommends: sampling MODEL PROMPT N_TOKENS SEED */
#include <gpurun.h>
#include <stdlib.h>
#include <string.h>

static int print(const char *text, size_t n, void *user)
{
    return fwrite(text, 1, n, user) != n;
}

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    struct gr_model *model;
    int rc = gr_model_open(&model, argv[1], NULL);
    struct gr_sampler_params sampler = gr_sampler_params_default();
    int32_t n_set =
        rc ? 0 : gr_model_sampling(model, &sampler); /* general.sampling.* of the file */
    fprintf(stderr, "%d from the file: temperature %g, top-k %d, top-p %g\n", n_set,
            (double)sampler.temp, sampler.top_k, (double)sampler.top_p);
    sampler.seed = strtoull(argv[4], NULL, 10);
    struct gr_generate_params params = gr_generate_params_default();
    params.sampler = &sampler;
    params.text = print, params.user = stdout;
    params.n_predict = atoi(argv[3]);
    if (!rc)
        rc = gr_generate(model, argv[2], strlen(argv[2]), NULL, &params, NULL);
    if (rc)
        fprintf(stderr, "%s\n", gr_error_message());
    gr_model_close(&model);
    return gr_status_exit(rc);
}
