/* A file that is being downloaded: FILE.part, which one process at a time writes and which stays
 * when it ends, until it is complete and becomes FILE. */
#ifndef GR_TOOLS_PART_H
#define GR_TOOLS_PART_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GR_PATH_MAX 4096

struct gr_part {
    char path[GR_PATH_MAX];
    int fd;      /* locked; -1: closed */
    uint64_t n;  /* bytes it has */
    bool waited; /* another process was at it */
};

/* Opens or makes the part of a file and locks it, waiting for another process that has the lock;
 * the folder exists. 0, or an exit code after printing the error, with *part closed. */
int gr_part_open(struct gr_part *part, const char *path);
/* Add bytes; drop all. 0, or an exit code after printing the error. */
int gr_part_add(struct gr_part *part, const void *p, size_t n);
int gr_part_empty(struct gr_part *part);
/* Checks that the file system has room for so many bytes more. */
int gr_part_room(const struct gr_part *part, uint64_t n);
/* Writes it to the disk and gives it its final name; it stays locked until it is closed. */
int gr_part_commit(struct gr_part *part, const char *path);
/* Removes it; closes it. */
void gr_part_remove(struct gr_part *part);
void gr_part_close(struct gr_part *part);

#endif
