/* The flags of gpurun run that say what may be written: a grammar or a JSON schema. */
#include <stdlib.h>
#include <string.h>

#include "run.h"
#include "tools/cli/flags.h"
#include "tools/cli/input.h"
#include "tools/cli/say.h"

/* A grammar that is wrong is wrong usage, whatever the library calls it. */
static int say_wrong(const char *flag, int status)
{
    gr_say_error("%s: %s", flag, gr_error_message());
    int code = gr_status_exit(status);
    return code == gr_status_exit(GR_E_NOMEM_HOST) ? code : GR_EXIT_USAGE;
}

int gr_read_grammar(const struct gr_options *o, const struct gr_model *model,
                    struct gr_grammar **grammar)
{
    bool schema = o->json_schema || o->json_schema_file;
    const char *path = schema ? o->json_schema_file : o->grammar_file;
    const char *text = schema ? o->json_schema : o->grammar;
    const char *flag = schema ? (path ? "-jf" : "-j") : path ? "--grammar-file" : "--grammar";
    char *data = NULL;
    size_t n = text ? strlen(text) : 0;
    *grammar = NULL;
    if (!text && !path)
        return 0;
    int rc = path ? gr_read_all(path, &data, &n) : 0;
    if (rc)
        return rc;
    rc = (schema ? gr_grammar_schema : gr_grammar_gbnf)(grammar, model, data ? data : text, n);
    free(data);
    return rc ? say_wrong(flag, rc) : 0;
}

int gr_open_grammar(const struct gr_options *o, const struct gr_model *model,
                    struct gr_grammar_state **state)
{
    struct gr_grammar *grammar;
    *state = NULL;
    int rc = gr_read_grammar(o, model, &grammar);
    int status = rc || !grammar ? 0 : gr_grammar_state_new(state, grammar);
    gr_grammar_free(&grammar);
    return status ? gr_say_status(status) : rc;
}
