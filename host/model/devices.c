#include "model/devices.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/checked.h"
#include "base/log.h"
#include "gr/status.h"
#include "model/weight_homes.h"

static const struct gr_device_kind *const built_in[] = {&gr_cuda_devices};
static const struct gr_device_kind *const *kinds = built_in;
static int n_kind = GR_COUNT(built_in);

void gr_device_kinds_set(const struct gr_device_kind *const *other, int n)
{
    kinds = other ? other : built_in;
    n_kind = other ? n : (int)GR_COUNT(built_in);
}

/* ---- listing ---- */

static int count(const struct gr_device_kind *kind, const char **why, bool *broken)
{
    *why = "there is no GPU";
    *broken = false;
    return kind->count(why, broken);
}

int32_t gr_device_count(const char **why)
{
    int32_t n = 0;
    const char *reason = NULL, *one;
    bool broken;
    for (int k = 0; k < n_kind; k++) {
        int found = count(kinds[k], &one, &broken);
        n += found;
        if (!found && (broken || !reason))
            reason = one;
    }
    if (why)
        *why = n ? NULL : reason;
    return n;
}

void gr_device_versions(struct gr_device_versions *out)
{
    struct gr_kind_versions v = {.needed_name = ""};
    for (int k = 0; k < n_kind && !v.needed; k++)
        if (kinds[k]->versions)
            kinds[k]->versions(&v);
    *out = (struct gr_device_versions){v.driver, v.compiler, v.needed, v.needed_name};
}

int gr_device_transport(const char **what)
{
    *what = "no kind of device has such a way";
    for (int k = 0; k < n_kind; k++)
        if (kinds[k]->transport_find)
            return kinds[k]->transport_find(GR_TRANSPORT_NCCL, what);
    return 0;
}

int gr_device_matmul(const char **what)
{
    *what = "no kind of device has such a library";
    for (int k = 0; k < n_kind; k++)
        if (kinds[k]->matmul_find)
            return kinds[k]->matmul_find(what);
    return 0;
}

int gr_device_get(int32_t i, struct gr_device *out)
{
    struct gr_device_info info = {0};
    const char *why;
    bool broken;
    for (int k = 0, n; k < n_kind; k++, i -= n) {
        n = count(kinds[k], &why, &broken);
        if (i < 0 || i >= n)
            continue;
        int rc = kinds[k]->info(i, &info);
        *out = (struct gr_device){.total_bytes = info.total_bytes,
                                  .free_bytes = info.free_bytes,
                                  .bytes_per_s = info.bytes_per_s,
                                  .cc = info.cc,
                                  .n_sm = info.n_sm,
                                  .unusable = info.unusable};
        snprintf(out->name, sizeof out->name, "%s", info.name);
        snprintf(out->description, sizeof out->description, "%s", info.description);
        snprintf(out->bus_id, sizeof out->bus_id, "%s", info.bus_id);
        return rc;
    }
    return gr_fail(GR_E_INVALID, "there is no device of that number");
}

/* ---- choosing ---- */

static int add(struct gr_devices *d, const struct gr_device_kind *kind, int i)
{
    if (d->n == GR_MAX_DEVICE - 1)
        return gr_fail(GR_E_INVALID, "more than %d devices", GR_MAX_DEVICE - 1);
    struct gr_device_ref *f = &d->found[d->n];
    *f = (struct gr_device_ref){.kind = kind, .index = i};
    int rc = kind->info(i, &f->info);
    if (!rc && f->info.unusable)
        rc = gr_fail(GR_E_DEVICE, "%s (%s) cannot be used: %s", f->info.name, f->info.description,
                     f->info.unusable);
    d->n += !rc;
    return rc;
}

/* Adds a single GPU of a kind: number main_gpu, or the first usable one. */
static int add_main(struct gr_devices *d, const struct gr_device_kind *kind, int n,
                    int32_t main_gpu)
{
    int rc = GR_E_DEVICE;
    if (main_gpu >= n)
        return gr_fail(GR_E_DEVICE, "main GPU %d: there are %d, counted from 0", main_gpu, n);
    if (main_gpu >= 0)
        return add(d, kind, main_gpu);
    for (int i = 0; i < n && rc; i++)
        rc = add(d, kind, i);
    return rc;
}

/* Adds all usable GPUs of a kind; there must be at least one. */
static int add_all(struct gr_devices *d, const struct gr_device_kind *kind, int n)
{
    int first = 0, n_most = GR_MIN(n, GR_MAX_DEVICE - 1);
    const char *why[GR_MAX_DEVICE];
    for (int i = 0; i < n_most; i++) {
        int rc = add(d, kind, i);
        first = first ? first : rc;
        why[i] = rc ? d->found[d->n].info.unusable : NULL;
        if (rc && (rc != GR_E_DEVICE || !why[i]))
            return rc;
    }
    if (!d->n) /* fails again with the reason of the first one */
        return add(d, kind, 0);
    for (int i = 0; i < n_most; i++)
        if (why[i])
            gr_log(GR_LOG_INFO, "%s%d is left out: %s", kind->name, i, why[i]);
    return 0;
}

/* Adds the GPUs of a kind that a model uses: all, or if it is not split the main one. */
static int add_kind(struct gr_devices *d, const struct gr_device_kind *kind, int n,
                    const struct gr_model_params *p)
{
    if (p->split_mode == GR_SPLIT_MODE_NONE)
        return add_main(d, kind, n, p->main_gpu);
    if (p->main_gpu >= 0)
        gr_log(GR_LOG_WARN,
               "--main-gpu counts with --split-mode none only; --device %s%d uses that one alone",
               kind->name, p->main_gpu);
    return add_all(d, kind, n);
}

/* "auto": the first kind with any devices. A GPU that exists but is unusable is an error when there
 * is no other; having none is not. */
static int choose_any(struct gr_devices *d, const struct gr_model_params *p)
{
    const char *why = NULL;
    bool broken;
    for (int k = 0; k < n_kind; k++) {
        int n = count(kinds[k], &why, &broken);
        if (n)
            return add_kind(d, kinds[k], n, p);
        if (broken)
            return gr_fail(GR_E_DEVICE, "%s; -ngl 0 or --device none runs on the CPU", why);
    }
    if (p->require_gpu)
        return gr_fail(GR_E_DEVICE, "--require-gpu: %s; the CPU is used without it", why);
    gr_log(p->n_gpu_layers > 0 ? GR_LOG_WARN : GR_LOG_DEBUG,
           "no usable GPU, every layer runs on the CPU: %s", why);
    return 0;
}

/* The number written in n characters; -1: they are not digits, or it is too large. */
static int number(const char *p, size_t n)
{
    int i = 0;
    for (size_t k = 0; k < n; k++) {
        if (p[k] < '0' || p[k] > '9' || i > 1000)
            return -1;
        i = i * 10 + p[k] - '0';
    }
    return i;
}

/* Adds the device called `name`, or the devices of a kind of that name. A repeated name counts as
 * several devices that share memory. */
static int choose_named(struct gr_devices *d, const struct gr_model_params *p, const char *name,
                        size_t len)
{
    const char *why;
    bool broken;
    for (int k = 0; k < n_kind; k++) {
        size_t kind = strlen(kinds[k]->name);
        if (len < kind || strncasecmp(name, kinds[k]->name, kind) != 0)
            continue;
        int n = count(kinds[k], &why, &broken), i = number(name + kind, len - kind);
        if (n == 0)
            return gr_fail(GR_E_DEVICE, "device %s: %s; the CPU is device 'cpu'",
                           gr_quote(name, len), why);
        if (len == kind)
            return add_kind(d, kinds[k], n, p);
        if (i < 0)
            continue;
        if (i >= n)
            return gr_fail(GR_E_DEVICE, "device %s: there %s %d of that kind, counted from 0",
                           gr_quote(name, len), n == 1 ? "is" : "are", n);
        return add(d, kinds[k], i);
    }
    return gr_fail(
        GR_E_INVALID,
        "device %s: auto, cpu, none, %s or one of them, for example %s0, expected; gpurun "
        "devices lists them",
        gr_quote(name, len), kinds[0]->name, kinds[0]->name);
}

int gr_devices_choose(struct gr_devices *d, const struct gr_model_params *p)
{
    const char *name = p->device ? p->device : "auto";
    bool unused = p->n_gpu_layers == 0 && !gr_weight_homes_name_gpu(p);
    bool none = !strcasecmp(name, "cpu") || !strcasecmp(name, "none") || unused;
    int rc = 0;
    *d = (struct gr_devices){0};
    if (none && p->require_gpu)
        return gr_fail(GR_E_DEVICE, "--require-gpu: %s keeps to the CPU",
                       unused ? "-ngl 0" : "--device");
    if (none)
        return 0;
    if (!strcasecmp(name, "auto"))
        return choose_any(d, p);
    for (size_t len; *name && !rc; name += len + (name[len] == ',')) {
        len = strcspn(name, ",");
        rc = choose_named(d, p, name, len);
    }
    return rc;
}
