/* gpurun inspect, quantize, split and merge: commands on files. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "tools/cli/flags.h"
#include "tools/cli/progress.h"
#include "tools/cli/say.h"
#include "tools/cli/thread_options.h"

int gr_tool_inspect(const struct gr_options *o)
{
    if (!o->model) {
        gr_say_error("usage: gpurun inspect %s", gr_commands[GR_CMD_inspect].args);
        return GR_EXIT_USAGE;
    }
    int rc = gr_inspect(o->model, stdout, o->json);
    gr_out_finish();
    return rc ? gr_say_status(rc) : 0;
}

int gr_tool_quantize(const struct gr_options *o)
{
    struct gr_quantize_params p = {.type = o->arg[2],
                                   .imatrix = o->imatrix,
                                   .output_type = o->output_tensor_type,
                                   .embedding_type = o->token_embedding_type,
                                   .tensor_types = o->tensor_type.v,
                                   .pure = o->pure,
                                   .leave_output = o->leave_output_tensor,
                                   .allow_requantize = o->allow_requantize,
                                   .keep_split = o->keep_split,
                                   .dry_run = o->dry_run,
                                   .overwrite = o->overwrite,
                                   .n_threads = gr_threads_wanted(o),
                                   .progress = gr_bar_bytes,
                                   .progress_user = (void *)(uintptr_t) "quantize"};
    int rc = gr_quantize_file(o->arg[0], o->arg[1], &p);
    return rc ? gr_say_status(rc) : 0;
}

/* Parses "200M" or "2G": millions or billions of bytes. */
static bool read_size(const char *text, uint64_t *bytes)
{
    char *end;
    unsigned long n = strtoul(text, &end, 10);
    uint64_t unit = strcmp(end, "M") == 0 ? 1000000 : strcmp(end, "G") == 0 ? 1000000000 : 0;
    *bytes = n * unit;
    return *text >= '0' && *text <= '9' && unit && n > 0 && n <= 1u << 30;
}

int gr_tool_split(const struct gr_options *o)
{
    struct gr_split_params p = {.max_tensors = (uint32_t)o->split_max_tensors,
                                .dry_run = o->dry_run,
                                .overwrite = o->overwrite};
    if (o->split_max_size && !read_size(o->split_max_size, &p.max_bytes)) {
        gr_say_error("--split-max-size is '%s': a whole number and M or G is expected",
                     o->split_max_size);
        return GR_EXIT_USAGE;
    }
    if (o->split_max_size)
        p.max_tensors = 0;
    int rc = gr_split_file(o->arg[0], o->arg[1], &p);
    return rc ? gr_say_status(rc) : 0;
}

int gr_tool_merge(const struct gr_options *o)
{
    int rc = gr_merge_file(o->arg[0], o->arg[1], o->overwrite);
    return rc ? gr_say_status(rc) : 0;
}
