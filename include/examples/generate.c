/* Continues a prompt: generate MODEL PROMPT N_TOKENS [STOP_STRING] */
#include <gpurun.h>
#include <stdlib.h>
#include <string.h>

static int print(const char *text, size_t n, void *user)
{
    return fwrite(text, 1, n, user) != n; /* non-zero would end the text */
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    struct gr_model *model;
    int rc = gr_model_open(&model, argv[1], NULL);
    struct gr_sampler_params greedy = gr_sampler_params_default();
    greedy.temp = 0;
    struct gr_generate_params params = gr_generate_params_default();
    params.text = print, params.user = stdout;
    params.sampler = &greedy;
    params.n_predict = atoi(argv[3]);
    params.stop = (const char *const *)argv + 4;
    params.n_stop = argc - 4;
    struct gr_generated done = {.stop = -1};
    if (!rc)
        rc = gr_generate(model, argv[2], strlen(argv[2]), NULL, &params, &done);
    if (rc)
        fprintf(stderr, "%s\n", gr_error_message());
    else
        fprintf(stderr, "%d + %d tokens, end %d\n", done.n_prompt, done.n_token, (int)done.end);
    gr_model_close(&model);
    return gr_status_exit(rc);
}
