/* Files of prefixes: their form, and what is done with them in a folder. Independent of the thread.
 *
 * A file is written under a temporary name, whose lock its writer holds, synced and renamed. */
#ifndef GR_TOOLS_DISK_FILE_H
#define GR_TOOLS_DISK_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define GR_DISK_SUFFIX ".prefix"
enum {
    GR_DISK_SUM = 32, /* bytes of a SHA-256 */
    GR_DISK_HEX = 2 * GR_DISK_SUM,
    GR_DISK_NAME = GR_DISK_HEX + sizeof GR_DISK_SUFFIX
};

/* The beginning of a file; tokens and the state follow. */
struct gr_disk_head {
    char magic[8];
    uint32_t version, n_token;
    uint64_t owner, n_state;
    uint32_t least; /* fewest tokens that the state can be cut to */
    uint32_t zero;
    uint8_t model[GR_DISK_SUM]; /* stands for the model and what else a state depends on */
    uint8_t sum[GR_DISK_SUM];   /* of this, with zeros here, and the tokens */
};

/* A file of a folder. */
struct gr_disk_file {
    char name[GR_DISK_NAME];
    uint64_t owner, bytes;
    struct timespec used;
    int32_t *token; /* [n]; NULL: of another model */
    int32_t n, least;
    bool pending; /* is to be written */
};

/* The sum of a state of a session's sequence without cells. */
void gr_disk_sum(const void *data, size_t n, uint8_t sum[GR_DISK_SUM]);
/* Fills in what is the same in all files, and the sum. */
void gr_disk_seal(struct gr_disk_head *h, const int32_t *token);
/* Names a file by model, owner and text. */
void gr_disk_name_of(const struct gr_disk_head *h, const int32_t *token, char name[GR_DISK_NAME]);

/* Opens a folder, made if it is missing, for this user alone. Others' folders, but for root's, and
 * those that others may write to are refused. *dir: a descriptor. Returns a status, after printing
 * the error. */
int gr_disk_open_folder(const char *path, int *dir);

/* An entry of a folder. */
struct gr_disk_found {
    struct gr_disk_file file;
    bool known;
    const char *damage; /* NULL: none */
};
/* Lists the files of a folder; the text is read of those that are not `known` [n_known], which are
 * sorted here, and of the model. Removes temporary files whose writers are gone. *foreign: some
 * file belongs to another user, or may be written by others, and is left out. Returns a status;
 * *found
 * [*n] belongs to the caller. */
int gr_disk_scan(int dir, const uint8_t model[GR_DISK_SUM], char (*known)[GR_DISK_NAME],
                 int32_t n_known, struct gr_disk_found **found, int32_t *n, bool *foreign);
void gr_disk_found_free(struct gr_disk_found *found, int32_t n);

/* Returns a status; `message` [n] has the reason. */
int gr_disk_write(int dir, const char *name, const struct gr_disk_head *h, const int32_t *token,
                  const void *state, char *message, size_t n);
/* Reads the state (free) of a file of n_token tokens. GR_E_IO: another program has removed or
 * replaced it, or it cannot be read. */
int gr_disk_read_state(int dir, const char *name, uint64_t bytes, int32_t n_token, void **state,
                       size_t *n);

#endif
