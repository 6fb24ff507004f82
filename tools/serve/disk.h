/* Prefixes on disk: texts with the states of their sequences, each a file of a folder that several
 * programs, models and runs may share at once. A file is written under another name, synced and
 * renamed, carries checksums of all its bytes, and is removed when they are wrong; the folder is
 * usable after an end at any moment. Files used longest ago go first when there are too many bytes,
 * those of other programs counted as they were a few seconds ago.
 *
 * A thread reads and writes: no function but gr_disk_open, gr_disk_wait and gr_disk_close waits for
 * the disk. All are called from one thread.
 *
 * A file belongs to an owner, to whom alone it is given; owners are the same in later runs, so
 * their numbers have to be too. */
#ifndef GR_TOOLS_DISK_H
#define GR_TOOLS_DISK_H

#include <stdbool.h>
#include <stdint.h>

struct gr_session;
struct gr_disk;
struct gr_disk_job;

/* Opens a folder, made for this user alone if it is missing, for states of an empty session's
 * sequences, at most so many bytes of files. `whole`: a state can be cut nowhere. Removes damaged
 * files and what an interrupted write left. notice (NULL: none): called in the disk's thread when
 * something was read or written, for gr_disk_poll. Returns a status, after printing the error. */
int gr_disk_open(struct gr_disk **out, const char *dir, uint64_t most_bytes,
                 struct gr_session *session, bool whole, void (*notice)(void *user), void *user);
/* Writes what was saved first. */
void gr_disk_close(struct gr_disk **disk);

/* Takes note of what was read and written, and of other programs' files now and then. */
void gr_disk_poll(struct gr_disk *disk);
/* Does so once all is done. */
void gr_disk_wait(struct gr_disk *disk);
/* Returns whether something is being read or written. */
bool gr_disk_is_busy(const struct gr_disk *disk);

/* Returns how much of token [n] the best of the owner's files can give: its common beginning with
 * the file's text, where the state can be cut there. *file: that one, until the next call of
 * another function, -1: none. */
int32_t gr_disk_find(const struct gr_disk *disk, uint64_t owner, const int32_t *token, int32_t n,
                     int32_t *file);
/* Returns the number of tokens of a file's text. */
int32_t gr_disk_length(const struct gr_disk *disk, int32_t file);
/* Has a file read into memory. NULL: not now, since it is being written or read, or some others are
 * read, or there is no memory. *soon: the disk alone is waited for then, and not the use of what
 * was read. The job is the disk's; it ends with gr_disk_load or gr_disk_unread. */
struct gr_disk_job *gr_disk_read(struct gr_disk *disk, int32_t file, bool *soon);
/* Returns whether gr_disk_poll has found it to be read, or impossible to read. */
bool gr_disk_is_read(const struct gr_disk_job *job);
/* Restores what was read into an empty sequence, and frees it. A damaged file is removed, with a
 * warning (GR_E_CORRUPT); else GR_E_IO, or as gr_state_load. */
int gr_disk_load(struct gr_disk *disk, struct gr_disk_job **job, int32_t seq);
void gr_disk_unread(struct gr_disk *disk, struct gr_disk_job **job); /* NULL: nothing */
/* Saves a sequence with its text, unless a file has it already; one that has a beginning of it is
 * removed. When too much waits for the disk it is not saved, and counted. Failures are said once,
 * as a warning. */
void gr_disk_save(struct gr_disk *disk, int32_t seq, uint64_t owner, const int32_t *token,
                  int32_t n);

struct gr_disk_stats {
    int32_t n_file; /* of this model */
    uint64_t bytes; /* of all */
    int64_t n_saved, n_loaded, n_damaged;
    int64_t n_unsaved; /* texts that were not saved, as the disk was too slow */
};
struct gr_disk_stats gr_disk_stats(const struct gr_disk *disk);

#endif
