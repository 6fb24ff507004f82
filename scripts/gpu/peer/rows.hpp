// Rows of what llama.cpp does, in the form of bench_ops -j 1.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

using seconds = std::chrono::duration<double>;

inline double now()
{
    return seconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct row {
    std::string op, type, shape;
    int64_t n_tok = 1;
    double bytes = 0, flops = 0, error = NAN, rotated = 0;
};

// Seconds a launch of each measurement: what is done n times, until the device is through, is n_each
// launches; long enough that its beginning and end do not count.
inline std::vector<double> measure(int reps, int n_each, const std::function<void(int n)> &run)
{
    double warm = now(), once;
    do {
        once = now();
        run(1);
        once = now() - once;
    } while (now() - warm < 0.05);
    const int n = std::max(1, int(2e-3 / once));
    std::vector<double> found;
    for (int i = 0; i < reps; i++) {
        const double from = now();
        run(n);
        found.push_back((now() - from) / n / n_each);
    }
    std::sort(found.begin(), found.end());
    return found;
}

inline void print(const row &r, const std::vector<double> &s)
{
    char error[32] = "null";
    if (std::isfinite(r.error))
        std::snprintf(error, sizeof error, "%.3g", r.error);
    std::printf("{\"op\": \"%s\", \"type\": \"%s\", \"shape\": \"%s\", \"n_tok\": %lld, \"impl\": \"llama.cpp\", "
                "\"median_us\": %.3f, \"p10_us\": %.3f, \"p90_us\": %.3f, \"bytes\": %.0f, \"flops\": %.0f, "
                "\"rel_err\": %s, \"rotated_mb\": %.3g}\n",
                r.op.c_str(), r.type.c_str(), r.shape.c_str(), (long long)r.n_tok, s[s.size() / 2] * 1e6,
                s[s.size() / 10] * 1e6, s[s.size() * 9 / 10] * 1e6, r.bytes, r.flops, error, r.rotated);
    std::fflush(stdout);
}

inline std::vector<std::string> words(const std::string &list)
{
    std::vector<std::string> found(1);
    for (char c : list)
        if (c == ',')
            found.emplace_back();
        else
            found.back() += c;
    return found;
}
