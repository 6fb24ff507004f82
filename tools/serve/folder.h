/* The folder of --models-dir. */
#ifndef GR_TOOLS_FOLDER_H
#define GR_TOOLS_FOLDER_H

#include <stddef.h>
#include <stdint.h>

/* A model of the folder: NAME.gguf; of a model in several files NAME-00001-of-0000N.gguf; or in a
 * folder NAME within, the first of its files. Names are valid UTF-8. */
struct gr_folder_file {
    char *name, *path;
    int64_t modified; /* Unix time */
    uint64_t n_bytes; /* of this file */
};

/* Reads the folder into *files [*n], by name, each name once. Files for images (mmproj) and drafts
 * (mtp-, dspark-, dflash-) are left out. Returns 0, or errno; nothing is to be freed then. */
int gr_folder_read(const char *dir, struct gr_folder_file **files, size_t *n);
void gr_folder_free(struct gr_folder_file *files, size_t n);

#endif
