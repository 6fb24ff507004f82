/* gpurun inspect and gpurun quantize: commands on files. */
#include <stdio.h>

#include "tools.h"

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
    int rc = gr_quantize_file(o->arg[0], o->arg[1], o->arg[2], gr_threads_wanted(o));
    return rc ? gr_say_status(rc) : 0;
}
