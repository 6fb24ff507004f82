// Parts shared by the two fronts of the emulated device (kernels compiled as C++, kernels as PTX):
// options and random numbers, findings, device memory.
#pragma once

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <mutex>
#include <string>

#include "emu.h"

namespace emu
{
// --- options.cc ---

extern struct emu_options options;
extern std::mutex running; // one launch at a time
uint32_t random_below(uint32_t n);

// --- findings.cc: what goes wrong ---

std::string format(const char *form, ...) __attribute__((format(printf, 1, 2)));
std::string format_list(const char *form, va_list list);
void report_begin(); // a launch begins
void report_add(const std::string &text);
bool report_any(); // whether anything was found since
extern std::string report;

// --- memory.cc: device memory ---

// Position of p relative to the nearest allocation: "16 bytes behind an allocation of 4096 bytes".
std::string where(const void *p);
bool memory_owns(const void *p, size_t bytes);
bool memory_range(const void *p, uintptr_t *lo, uintptr_t *hi); // of the allocation that holds p
void memory_check_ends(const char *kernel); // reports what it wrote behind an allocation's end
// Called by memory.cc for an access to p that opening an allocation does not allow; each front
// defines it. Does not return when the access was a kernel's.
void front_fault(const void *p, int signal, void *context);
} // namespace emu
