/* Slots: texts of the cache in files of a folder. */
#ifndef GR_TOOLS_SERVE_SLOTS_H
#define GR_TOOLS_SERVE_SLOTS_H

struct gr_slots;

/* Opens the folder, made if it is missing; NULL: none, and *out is NULL. Returns an exit code,
 * after printing the error. */
int gr_slots_open(struct gr_slots **out, const char *folder);
/* Waits until what was begun has ended, and accepts no more. The scheduler has to have stopped, or
 * still to run. NULL: none. */
void gr_slots_end(struct gr_slots *s);
/* After gr_slots_end, or before any request. */
void gr_slots_free(struct gr_slots **s);

#endif
