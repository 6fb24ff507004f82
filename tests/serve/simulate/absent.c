/* Functions of the library and of the server that the simulated requests do not reach: no adapters,
 * files, saved states or moved cells. */
#include "gpurun.h"
#include "tools/cli/say.h"
#include "tools/serve/disk.h"

int gr_session_set_adapters(struct gr_session *s, const float scale[GR_MAX_ADAPTER])
{
    (void)s, (void)scale;
    return GR_E_UNSUPPORTED;
}

int gr_state_save(struct gr_session *s, int32_t seq, const void *note, size_t n_note, void **data,
                  size_t *n)
{
    (void)s, (void)seq, (void)note, (void)n_note, (void)data, (void)n;
    return GR_E_UNSUPPORTED;
}

int gr_state_load(struct gr_session *s, int32_t seq, const void *data, size_t n, void **note,
                  size_t *n_note)
{
    (void)s, (void)seq, (void)data, (void)n, (void)note, (void)n_note;
    return GR_E_UNSUPPORTED;
}

void gr_state_free(void *data)
{
    (void)data;
}

int gr_error_status(void)
{
    return 0;
}

void gr_disk_wait(struct gr_disk *disk)
{
    (void)disk;
}

int gr_self_extend(struct gr_session *s, struct gr_self_extend *se, int32_t *n_past)
{
    (void)s, (void)se, (void)n_past;
    return GR_E_UNSUPPORTED;
}

int gr_context_shift(struct gr_session *s, int32_t seq, int32_t n_keep, int32_t n_discard,
                     int32_t *n_past)
{
    (void)s, (void)seq, (void)n_keep, (void)n_discard, (void)n_past;
    return GR_E_UNSUPPORTED;
}

int gr_kv_seq_add(struct gr_session *s, int32_t seq, int32_t p0, int32_t p1, int32_t delta)
{
    (void)s, (void)seq, (void)p0, (void)p1, (void)delta;
    return GR_E_UNSUPPORTED;
}

int gr_kv_seq_div(struct gr_session *s, int32_t seq, int32_t p0, int32_t p1, int32_t d)
{
    return gr_kv_seq_add(s, seq, p0, p1, d);
}

int gr_kv_seq_dup(struct gr_session *s, int32_t from, int32_t to, int32_t p0, int32_t p1)
{
    return gr_kv_seq_add(s, from, to, p0, p1);
}

int gr_disk_open(struct gr_disk **out, const char *dir, uint64_t most_bytes,
                 struct gr_session *session, bool whole, void (*notice)(void *user), void *user)
{
    (void)dir, (void)most_bytes, (void)session, (void)whole, (void)notice, (void)user;
    *out = NULL;
    return GR_E_UNSUPPORTED;
}

void gr_disk_close(struct gr_disk **disk)
{
    (void)disk;
}

void gr_disk_poll(struct gr_disk *disk)
{
    (void)disk;
}

bool gr_disk_is_busy(const struct gr_disk *disk)
{
    (void)disk;
    return false;
}

int32_t gr_disk_find(const struct gr_disk *disk, uint64_t owner, const int32_t *token, int32_t n,
                     int32_t *file)
{
    (void)disk, (void)owner, (void)token, (void)n;
    *file = -1;
    return 0;
}

int32_t gr_disk_length(const struct gr_disk *disk, int32_t file)
{
    (void)disk, (void)file;
    return 0;
}

struct gr_disk_job *gr_disk_read(struct gr_disk *disk, int32_t file, bool *soon)
{
    (void)disk, (void)file;
    *soon = false;
    return NULL;
}

bool gr_disk_is_read(const struct gr_disk_job *job)
{
    (void)job;
    return true;
}

int gr_disk_load(struct gr_disk *disk, struct gr_disk_job **job, int32_t seq)
{
    (void)disk, (void)job, (void)seq;
    return GR_E_UNSUPPORTED;
}

void gr_disk_unread(struct gr_disk *disk, struct gr_disk_job **job)
{
    (void)disk, (void)job;
}

void gr_disk_save(struct gr_disk *disk, int32_t seq, uint64_t owner, const int32_t *token,
                  int32_t n)
{
    (void)disk, (void)seq, (void)owner, (void)token, (void)n;
}

struct gr_disk_stats gr_disk_stats(const struct gr_disk *disk)
{
    (void)disk;
    return (struct gr_disk_stats){0};
}

const char *gr_error_message(void)
{
    return "the stand-in does not do this";
}

const char *gr_status_text(int status)
{
    (void)status;
    return gr_error_message();
}

int gr_say_status(int status)
{
    return status;
}
