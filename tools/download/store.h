/* The folders in which downloads are kept: those of llama.cpp and of huggingface_hub, which read
 * and write the same files.
 *
 *   HUB/models--USER--NAME/blobs/OID             contents
 *   HUB/models--USER--NAME/snapshots/COMMIT/PATH links to them
 *   HUB/models--USER--NAME/refs/main             the commit that was seen last
 *   URLS/NAME, URLS/NAME.etag                    a file from a URL, its version and origin
 *
 * HUB: the variable LLAMA_CACHE, HF_HUB_CACHE or HUGGINGFACE_HUB_CACHE, or hub in HF_HOME, or
 * huggingface/hub in XDG_CACHE_HOME or ~/.cache. URLS: LLAMA_CACHE, or llama.cpp in XDG_CACHE_HOME
 * or ~/.cache. */
#ifndef GR_TOOLS_STORE_H
#define GR_TOOLS_STORE_H

#include "hub.h"
#include "part.h"

/* 0, or an exit code after printing the error. */
int gr_store_urls(char folder[GR_PATH_MAX]);
int gr_store_repo(const char *repo, char folder[GR_PATH_MAX]);

/* Store FOLDER/REST; the second makes the folders above it too. 0, or an exit code after printing
 * the error. */
int gr_store_join(char path[GR_PATH_MAX], const char *folder, const char *rest);
int gr_store_path(char path[GR_PATH_MAX], const char *folder, const char *rest);

/* Finds a model in the snapshots of a repository: by `file`, or (NULL) by tag. *path: its first
 * part, freed by the caller; NULL: it is not there, or not all of its parts. 0, or an exit code
 * after printing the error. */
int gr_store_find(const char *folder, const char *tag, const char *file, char **path);

/* Returns whether the path is a file of this size, links followed. */
bool gr_store_has(const char *path, int64_t size);

/* Makes the snapshot's link to a file's content; where the file system has no links the content
 * moves there. */
int gr_store_link(const char *folder, const char *commit, const struct gr_hub_file *file);
/* Notes the commit of a branch; nothing is written when it is noted already. */
int gr_store_note(const char *folder, const char *branch, const char *commit);

#endif
