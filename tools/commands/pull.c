/* gpurun pull: a model is downloaded, and its path printed. */
#include <stdio.h>
#include <stdlib.h>

#include "commands.h"
#include "tools/cli/flags.h"
#include "tools/cli/say.h"
#include "tools/download/download.h"

int gr_tool_pull(const struct gr_options *o)
{
    char *path = NULL;
    int rc = gr_download_to(o, o->n_args ? o->arg[0] : NULL, o->pull_to, &path);
    if (path)
        printf("%s\n", path);
    gr_out_finish();
    free(path);
    return rc;
}
