/* Checks of the files to write, before any work. */
#include "outputs.h"

#include <string.h>
#include <sys/stat.h>

#include "adapters.h"
#include "flags.h"
#include "say.h"

/* Returns whether two names denote the same file, existing or not. */
static bool same(const char *a, const char *b)
{
    struct stat x, y;
    return a && b &&
           (!strcmp(a, b) ||
            (!stat(a, &x) && !stat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino));
}

/* Returns whether the command also uses the file in another way. An imatrix may replace the one it
 * starts from; several outputs may share a device. */
static bool is_taken(const struct gr_options *o, const struct gr_adapters *a, const char *path)
{
    const char *const other[] = {o->model,    o->file,  o->imatrix,      o->compare,
                                 o->log_file, o->trace, o->prompt_cache, o->base_file};
    struct stat st;
    bool is = false;
    if (!stat(path, &st) && !S_ISREG(st.st_mode))
        return false;
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        is |= other[i] != path && same(other[i], path);
    for (int32_t i = 0; i < a->n; i++)
        is |= same(a->v[i].path, path);
    for (int i = 1; i < o->models.n; i++)
        is |= same(o->models.v[i], path);
    for (int i = 0; i < o->n_args; i++)
        is |= same(o->arg[i], path);
    for (int32_t i = 0; i < o->in_file.n && path != o->imatrix_file; i++)
        is |= same(o->in_file.v[i], path);
    return is;
}

static int check(const struct gr_options *o, const struct gr_adapters *a, const char *flag,
                 const char *path, unsigned how)
{
    int status = path ? gr_output_check(path, how) : 0;
    if (status) {
        gr_say_error("%s: %s", flag, gr_error_message());
        return gr_status_exit(status);
    }
    if (!path || !is_taken(o, a, path))
        return 0;
    gr_say_error("%s: %s is a file of this command already; choose another name", flag, path);
    return GR_EXIT_USAGE;
}

int gr_outputs_check(const struct gr_options *o)
{
    struct gr_adapters a;
    const char *cache = o->prompt_cache_ro > 0 ? NULL : o->prompt_cache;
    const char *imatrix = o->command == GR_CMD_imatrix ? o->imatrix_file : NULL;
    const char *base = o->kl_divergence > 0 ? NULL : o->base_file;
    int rc = gr_adapters_read(&a, o);
    if (!rc)
        rc = check(o, &a, "--log-file", o->log_file, GR_OUTPUT_LIVE);
    if (!rc)
        rc = check(o, &a, "--trace", o->trace, 0);
    if (!rc)
        rc = check(o, &a, "--prompt-cache", cache, GR_OUTPUT_SEEKS | GR_OUTPUT_PRIVATE);
    if (!rc)
        rc = check(o, &a, "-o", imatrix, o->overwrite > 0 ? 0 : GR_OUTPUT_KEEP);
    if (!rc)
        rc = check(o, &a, "--kl-divergence-base", base, o->overwrite > 0 ? 0 : GR_OUTPUT_KEEP);
    gr_adapters_free(&a);
    return rc;
}
