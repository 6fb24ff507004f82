/* Files that a command is to write, looked at before any work. */
#include <sys/stat.h>

#include "tools.h"

static bool is_file(const char *path, const struct stat *file)
{
    struct stat st;
    return path && !stat(path, &st) && st.st_dev == file->st_dev && st.st_ino == file->st_ino;
}

static bool is_adapter(const struct gr_adapters *a, const struct stat *file)
{
    bool is = false;
    for (int32_t i = 0; i < a->n; i++)
        is |= is_file(a->v[i].path, file);
    return is;
}

/* Whether the command reads what is under the name. An imatrix may take the place of one that it
 * begins with. */
static bool is_input(const struct gr_options *o, const struct gr_adapters *a, const char *path)
{
    struct stat st;
    if (stat(path, &st) || !S_ISREG(st.st_mode))
        return false;
    bool is = is_file(o->model, &st) || is_file(o->file, &st) || is_file(o->imatrix, &st) ||
              is_file(o->compare, &st) || is_adapter(a, &st);
    for (int i = 0; i < o->n_args; i++)
        is |= is_file(o->arg[i], &st);
    for (int32_t i = 0; i < o->in_file.n && path != o->imatrix_file; i++)
        is |= is_file(o->in_file.v[i], &st);
    return is || (path != o->prompt_cache && is_file(o->prompt_cache, &st));
}

static int check(const struct gr_options *o, const struct gr_adapters *a, const char *flag,
                 const char *path, unsigned how)
{
    int status = path ? gr_output_check(path, how) : 0;
    if (status) {
        gr_say_error("%s: %s", flag, gr_error_message());
        return gr_status_exit(status);
    }
    if (!path || !is_input(o, a, path))
        return 0;
    gr_say_error("%s: %s is a file of this command already; choose another name", flag, path);
    return GR_EXIT_USAGE;
}

int gr_outputs_check(const struct gr_options *o)
{
    struct gr_adapters a;
    const char *cache = o->prompt_cache_ro > 0 ? NULL : o->prompt_cache;
    const char *imatrix = o->command == GR_CMD_imatrix ? o->imatrix_file : NULL;
    int rc = gr_adapters_read(&a, o);
    if (!rc)
        rc = check(o, &a, "--log-file", o->log_file, GR_OUTPUT_LIVE);
    if (!rc)
        rc = check(o, &a, "--trace", o->trace, 0);
    if (!rc)
        rc = check(o, &a, "--prompt-cache", cache, GR_OUTPUT_SEEKS | GR_OUTPUT_PRIVATE);
    if (!rc)
        rc = check(o, &a, "-o", imatrix, o->overwrite > 0 ? 0 : GR_OUTPUT_KEEP);
    gr_adapters_free(&a);
    return rc;
}
