/* ceiling THREADS [MIB]: how fast this machine reads memory now: threads sum up numbers that no cache holds (MIB in all,
 * 1024, on large pages where there are any), each its own part, from 1, 4 or 8 places of it at a time, in turn for a second.
 * Prints a JSON object: of the pattern with the best median that median and the best pass, in GB/s. */
#define _DEFAULT_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#define MOST 512
#define PASSES 1024
#define SECONDS 1.0

typedef uint64_t vec __attribute__((vector_size(64)));

static const int patterns[] = {1, 4, 8};
#define PATTERNS (sizeof patterns / sizeof *patterns)

struct part {
    const vec *data;
    size_t n;
    pthread_barrier_t *barrier;
    const int *places; /* 0: stop */
    uint64_t sum;
};

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static uint64_t sum_of(const vec *p, size_t n, int places)
{
    vec a[8] = {{0}}, all = {0};
    uint64_t sum = 0;
    n /= (size_t)places;
    for (size_t i = 0; i + 8 <= n; i += 8)
        for (int place = 0; place < places; place++)
            for (int k = 0; k < 8; k++)
                a[k] += p[(size_t)place * n + i + (size_t)k];
    for (int k = 0; k < 8; k++)
        all += a[k];
    for (int k = 0; k < 8; k++)
        sum += all[k];
    return sum;
}

static void *reader(void *arg)
{
    struct part *p = arg;
    for (pthread_barrier_wait(p->barrier); *p->places; pthread_barrier_wait(p->barrier)) {
        p->sum += sum_of(p->data, p->n, *p->places);
        pthread_barrier_wait(p->barrier);
    }
    return NULL;
}

static int rising(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static uint64_t *numbers(size_t n_bytes)
{
    uint64_t *data = aligned_alloc(2 << 20, n_bytes);
    if (!data)
        return NULL;
    madvise(data, n_bytes, MADV_HUGEPAGE);
    for (size_t i = 0; i < n_bytes / sizeof *data; i++)
        data[i] = i * 0x9e3779b97f4a7c15u;
    return data;
}

int main(int argc, char **argv)
{
    int n_threads = argc > 1 ? atoi(argv[1]) : 1, places = 0;
    long mib = argc > 2 ? atol(argv[2]) : 1024;
    size_t n_bytes = (size_t)mib << 20, n = n_bytes / sizeof(vec), n_pass = 0, best = 0;
    static pthread_t thread[MOST];
    static struct part part[MOST];
    static double rate[PATTERNS][PASSES];
    pthread_barrier_t barrier;
    uint64_t *data = n_threads > 0 && n_threads <= MOST && mib > 0 && mib % 2 == 0 ? numbers(n_bytes) : NULL, sum = 0;
    if (!data) {
        fprintf(stderr, "usage: ceiling THREADS [MIB, an even number]\n");
        return 2;
    }
    pthread_barrier_init(&barrier, NULL, (unsigned)n_threads + 1);
    for (int i = 0; i < n_threads; i++) {
        size_t lo = n * (size_t)i / (size_t)n_threads, hi = n * (size_t)(i + 1) / (size_t)n_threads;
        part[i] = (struct part){(const vec *)data + lo, hi - lo, &barrier, &places, 0};
        pthread_create(&thread[i], NULL, reader, &part[i]);
    }
    for (double begin = seconds(); n_pass < PASSES && (n_pass < 3 || seconds() - begin < SECONDS); n_pass++)
        for (size_t k = 0; k < PATTERNS; k++) {
            double start = seconds();
            places = patterns[k];
            pthread_barrier_wait(&barrier);
            pthread_barrier_wait(&barrier);
            rate[k][n_pass] = (double)n_bytes / (seconds() - start) * 1e-9;
        }
    places = 0;
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < n_threads; i++) {
        pthread_join(thread[i], NULL);
        sum += part[i].sum;
    }
    for (size_t k = 0; k < PATTERNS; k++) {
        qsort(rate[k], n_pass, sizeof **rate, rising);
        if (rate[k][n_pass / 2] > rate[best][n_pass / 2])
            best = k;
    }
    printf("{\"op\": \"read\", \"threads\": %d, \"gb_s\": %.3f, \"best_gb_s\": %.3f, \"places\": %d, \"passes\": %zu, \"sum\": %llu}\n",
           n_threads, rate[best][n_pass / 2], rate[best][n_pass - 1], patterns[best], n_pass, (unsigned long long)sum);
    free(data);
    return 0;
}
