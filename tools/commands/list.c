/* gpurun list: architectures, storage types and tokenizers that are read, the recipes that are
 * written, and known chat templates. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "tools/cli/flags.h"
#include "tools/cli/say.h"

static const struct {
    const char *name;
    enum gr_supported kind;
} lists[] = {
    {"architectures", GR_SUPPORTED_ARCH},
    {"types", GR_SUPPORTED_TYPE},
    {"recipes", GR_SUPPORTED_RECIPE},
    {"tokenizers", GR_SUPPORTED_TOKENIZER},
    {"pre-tokenizers", GR_SUPPORTED_PRE_TOKENIZER},
    {"templates", GR_SUPPORTED_TEMPLATE},
};
enum { N_LIST = sizeof lists / sizeof *lists };

static void print_list(enum gr_supported kind)
{
    char about[128];
    const char *name;
    for (int32_t i = 0; (name = gr_supported(kind, i, about, sizeof about)); i++)
        printf(*about ? "%-24s %s\n" : "%s\n", name, about);
}

static json_t *json_list(enum gr_supported kind)
{
    char about[128];
    const char *name;
    json_t *list = json_array();
    int bad = 0;
    for (int32_t i = 0; (name = gr_supported(kind, i, about, sizeof about)); i++)
        bad |= json_array_append_new(list, json_pack("{ss ss}", "name", name, "about", about));
    if (!bad)
        return list;
    json_decref(list);
    return NULL;
}

int gr_tool_list(const struct gr_options *o)
{
    const char *only = o->n_args ? o->arg[0] : NULL;
    json_t *all = json_object();
    int printed = 0, n = 0, bad = 0;
    for (int i = 0; i < N_LIST; i++) {
        if (only && strcmp(only, lists[i].name) != 0)
            continue;
        n++;
        if (o->json)
            bad |= json_object_set_new(all, lists[i].name, json_list(lists[i].kind));
        else if (only)
            print_list(lists[i].kind);
        else
            printf("%s%s:\n", printed++ ? "\n" : "", lists[i].name), print_list(lists[i].kind);
    }
    if (n && o->json && !bad)
        bad = json_dumpf(all, stdout, JSON_INDENT(2)) && !ferror(stdout), putchar('\n');
    json_decref(all);
    if (bad)
        return gr_say_no_memory();
    if (n)
        return 0;
    gr_say_error("list: architectures, types, recipes, tokenizers, pre-tokenizers or templates "
                 "expected, '%s' found",
                 only);
    return GR_EXIT_USAGE;
}
