/* A session over several devices: its caches and constants there, and waiting for them. */
#ifndef GR_ENGINE_SESSION_DEVICES_H
#define GR_ENGINE_SESSION_DEVICES_H

#include "engine/session.h"

/* Sets the devices of tensors, layers and caches for a placement; allocates nothing. */
void gr_session_place(struct gr_session *s, const struct gr_weights *weights);
/* Sets cost[il].cache, [n_layer], to the cache bytes of each layer if it were on this device. */
void gr_session_cache_by_layer(const struct gr_session *s, int32_t device,
                               struct gr_layer_cost *cost);
/* Allocates caches and constants by s->device[].has, and uploads the constants. */
int gr_session_alloc(struct gr_session *s);
/* Logs the size of this rank's caches on each device; on rank 0 also that of the whole model's. */
void gr_session_log_caches(const struct gr_session *s);
/* Returns the device of a tensor of s->tensors; -1: it belongs to another stage. */
int32_t gr_tensor_device(const struct gr_session *s, const struct gr_ten *t);
/* Waits until data from other ranks that devices wait for has arrived. GR_E_PEER_LOST. Called
 * before the host waits for such a device. */
int gr_session_wait_received(struct gr_session *s);
/* Waits until all uploads have finished reading host memory, except those to device `except` (-1:
 * none); computation on the devices continues. */
int gr_session_uploaded(struct gr_session *s, int32_t except);
/* Waits until all queued work of all devices is done. */
int gr_session_sync(struct gr_session *s);
/* Sets whether devices stop within a plan when s->cancel is set; never with shared layers. */
void gr_session_cancellable(struct gr_session *s, bool yes);

/* The options of the session's devices, by its parameters. */
struct gr_device_opt gr_session_device_opt(const struct gr_session *s);

#endif
