/* Writes JSON that a schema describes: json MODEL PROMPT SCHEMA */
#include <gpurun.h>
#include <string.h>

static int print(const char *text, size_t n, void *user)
{
    return fwrite(text, 1, n, user) != n;
}

int main(int argc, char **argv)
{
    struct gr_model *model = NULL;
    struct gr_grammar *grammar = NULL;
    struct gr_generate_params params = gr_generate_params_default();
    params.text = print, params.user = stdout;
    int rc = argc == 4 ? gr_model_open(&model, argv[1], NULL) : GR_E_INVALID;
    rc = rc ? rc : gr_grammar_schema(&grammar, model, argv[3], strlen(argv[3]));
    rc = rc ? rc : gr_grammar_state_new(&params.grammar, grammar);
    rc = rc ? rc : gr_generate(model, argv[2], strlen(argv[2]), NULL, &params, NULL);
    if (rc)
        fprintf(stderr, "%s\n", gr_error_message());
    gr_grammar_state_free(&params.grammar);
    gr_grammar_free(&grammar);
    gr_model_close(&model);
    return gr_status_exit(rc);
}
