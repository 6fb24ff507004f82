/* gpurun tokenize: the tokens of a text. */
#include <stdio.h>
#include <stdlib.h>

#include "commands.h"
#include "tools/cli/flags.h"
#include "tools/cli/input.h"
#include "tools/cli/model.h"
#include "tools/cli/say.h"
#include "tools/cli/visible.h"

static void print_ids(const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++)
        printf("%s%d", i ? ", " : "[", ids[i]);
    printf(n ? "]\n" : "[]\n");
}

/* One token a line: its id and its bytes. */
static int print_pieces(const struct gr_model *model, const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const char *p;
        size_t m;
        int rc = gr_text_piece(model, ids[i], true, &p, &m);
        if (rc)
            return gr_say_status(rc);
        printf("%6d -> '", ids[i]);
        (void)gr_write_visible(stdout, p, m); /* gr_out_finish looks at the stream */
        printf("'\n");
    }
    return 0;
}

static int print_tokens(const struct gr_options *o, const struct gr_model *model,
                        const int32_t *ids, size_t n)
{
    int rc = 0;
    if (o->json) {
        printf("{\"count\": %zu, \"ids\": ", n);
        for (size_t i = 0; i < n; i++)
            printf("%s%d", i ? ", " : "[", ids[i]);
        printf(n ? "]}\n" : "[]}\n");
        return 0;
    }
    if (o->ids)
        print_ids(ids, n);
    else
        rc = print_pieces(model, ids, n);
    if (!rc && o->show_count)
        printf("Total number of tokens: %zu\n", n);
    return rc;
}

int gr_tool_tokenize(const struct gr_options *o)
{
    struct gr_model *model = NULL;
    char *text = NULL;
    size_t n_text, n = 0;
    int32_t *ids = NULL;
    bool given;
    int rc = gr_read_text(o, &text, &n_text, &given);
    if (!rc && !given) {
        gr_say_error("there is no text: give it by -p, -f or standard input");
        rc = GR_EXIT_USAGE;
    }
    if (!rc)
        rc = gr_open_model(o, true, &model);
    if (!rc) {
        rc = gr_text_tokenize(model, text, n_text, o->bos, o->parse_special, &ids, &n);
        rc = rc ? gr_say_status(rc) : print_tokens(o, model, ids, n);
    }
    gr_free_ids(ids);
    gr_model_close(&model);
    free(text);
    return rc;
}
