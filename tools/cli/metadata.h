/* Metadata that the flags put in place of the model file's. */
#ifndef GR_TOOLS_METADATA_H
#define GR_TOOLS_METADATA_H

struct gr_options;

/* Sets *list to the items of --override-kv, ending with NULL; NULL: there are none. To be freed by
 * gr_metadata_free, also after a failure. */
int gr_metadata_of(char ***list, const struct gr_options *o);
void gr_metadata_free(char ***list);

#endif
