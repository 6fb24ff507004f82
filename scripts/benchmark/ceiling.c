/* ceiling THREADS [MIB]: how fast this machine reads memory: threads sum up numbers that no cache holds (MIB in all, 1024),
 * each its own part, again and again for two seconds. Prints a JSON object: the best and the median pass in GB/s. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define MOST 512
#define PASSES 4096

typedef uint64_t vec __attribute__((vector_size(64)));

struct part {
    const vec *data;
    size_t n;
    pthread_barrier_t *barrier;
    const int *stop;
    uint64_t sum;
};

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static uint64_t sum_of(const vec *p, size_t n)
{
    vec a[8] = {{0}}, all = {0};
    uint64_t sum = 0;
    for (size_t i = 0; i + 8 <= n; i += 8)
        for (int k = 0; k < 8; k++)
            a[k] += p[i + k];
    for (int k = 0; k < 8; k++)
        all += a[k];
    for (int k = 0; k < 8; k++)
        sum += all[k];
    return sum;
}

static void *reader(void *arg)
{
    struct part *p = arg;
    for (pthread_barrier_wait(p->barrier); !*p->stop; pthread_barrier_wait(p->barrier)) {
        p->sum += sum_of(p->data, p->n);
        pthread_barrier_wait(p->barrier);
    }
    return NULL;
}

static int rising(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    int n_threads = argc > 1 ? atoi(argv[1]) : 1, stop = 0, n_pass = 0;
    size_t n = (size_t)(argc > 2 ? atoi(argv[2]) : 1024) * 1048576 / sizeof(vec);
    static pthread_t thread[MOST];
    static struct part part[MOST];
    static double rate[PASSES];
    pthread_barrier_t barrier;
    uint64_t *data = n_threads > 0 && n_threads <= MOST ? aligned_alloc(4096, n * sizeof(vec)) : NULL;
    if (!data) {
        fprintf(stderr, "usage: ceiling THREADS [MIB]\n");
        return 2;
    }
    for (size_t i = 0; i < n * 8; i++)
        data[i] = i * 0x9e3779b97f4a7c15u;
    pthread_barrier_init(&barrier, NULL, (unsigned)n_threads + 1);
    for (int i = 0; i < n_threads; i++) {
        size_t lo = n * (size_t)i / (size_t)n_threads, hi = n * (size_t)(i + 1) / (size_t)n_threads;
        part[i] = (struct part){(const vec *)data + lo, hi - lo, &barrier, &stop, 0};
        pthread_create(&thread[i], NULL, reader, &part[i]);
    }
    for (double begin = seconds(); n_pass < PASSES && (n_pass < 3 || seconds() - begin < 2); n_pass++) {
        double start = seconds();
        pthread_barrier_wait(&barrier);
        pthread_barrier_wait(&barrier);
        rate[n_pass] = (double)(n * sizeof(vec)) / (seconds() - start) * 1e-9;
    }
    stop = 1;
    pthread_barrier_wait(&barrier);
    uint64_t sum = 0;
    for (int i = 0; i < n_threads; i++) {
        pthread_join(thread[i], NULL);
        sum += part[i].sum;
    }
    qsort(rate, (size_t)n_pass, sizeof *rate, rising);
    printf("{\"op\": \"read\", \"threads\": %d, \"gb_s\": %.3f, \"median_gb_s\": %.3f, \"passes\": %d, \"sum\": %llu}\n",
           n_threads, rate[n_pass - 1], rate[n_pass / 2], n_pass, (unsigned long long)sum);
    return 0;
}
