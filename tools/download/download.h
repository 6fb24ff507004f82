/* Models from the hub and from URLs: -hf, -mu and gpurun pull. */
#ifndef GR_TOOLS_DOWNLOAD_H
#define GR_TOOLS_DOWNLOAD_H

struct gr_options;

/* Fetches the model that the options name by -hf or -mu, or uses the copy that is there. *path: its
 * file, the first one of several, freed by the caller; NULL: they name none so. 0, or an exit code
 * after printing the error. */
int gr_download_model(const struct gr_options *o, char **path);

/* The same for gpurun pull: `name` is USER/REPO[:QUANT] or a URL, NULL for that of -hf or -mu; `to`
 * a file or folder to put it into, NULL for the cache. */
int gr_download_to(const struct gr_options *o, const char *name, const char *to, char **path);

#endif
