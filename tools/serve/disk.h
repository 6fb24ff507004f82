/* Prefixes on disk: texts with the states of their sequences, each a file of a folder that several
 * programs, models and runs may share. A file is written under another name, synced and renamed,
 * carries checksums of all its bytes, and is removed when they are wrong; the folder is usable
 * after an end at any moment. Files used longest ago go first when there are too many bytes.
 *
 * A file belongs to an owner, to whom alone it is given; owners are the same in later runs, so
 * their numbers have to be too. */
#ifndef GR_TOOLS_DISK_H
#define GR_TOOLS_DISK_H

#include <stdbool.h>
#include <stdint.h>

struct gr_session;
struct gr_disk;

/* Opens a folder, made if it is missing, for states of an empty session's sequences, at most so
 * many bytes of files. `whole`: a state is used for texts that begin with all of its text only.
 * Removes damaged files and what an interrupted write left. Returns a status, after printing
 * the error. */
int gr_disk_open(struct gr_disk **out, const char *dir, uint64_t most_bytes,
                 struct gr_session *session, bool whole);
void gr_disk_close(struct gr_disk **disk);

/* Returns the length of the longest common beginning of token [n] and a file's text of the owner.
 * *file: that one, until the next call of another function, -1: none. */
int32_t gr_disk_find(const struct gr_disk *disk, uint64_t owner, const int32_t *token, int32_t n,
                     int32_t *file);
/* Returns the number of tokens of a file's text. */
int32_t gr_disk_length(const struct gr_disk *disk, int32_t file);
/* Restores a file's text into an empty sequence. A damaged file is removed, with a warning
 * (GR_E_CORRUPT); else GR_E_IO, or as gr_state_load. */
int gr_disk_load(struct gr_disk *disk, int32_t file, int32_t seq);
/* Saves a sequence with its text, unless a file has it already; one that has a beginning of it is
 * removed. A thread writes one file while the session goes on; the next one waits for it. Failures
 * are said once, as a warning. */
void gr_disk_save(struct gr_disk *disk, int32_t seq, uint64_t owner, const int32_t *token,
                  int32_t n);

/* Waits until what was saved is in its file. */
void gr_disk_wait(struct gr_disk *disk);

struct gr_disk_stats {
    int32_t n_file; /* of this model */
    uint64_t bytes; /* of all */
    int64_t n_saved, n_loaded, n_damaged;
};
struct gr_disk_stats gr_disk_stats(struct gr_disk *disk);

#endif
