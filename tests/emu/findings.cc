// The report of a launch: its findings, one a line.
#include "common.hpp"

#include <stdio.h>

namespace emu
{
std::string report;
static int n_said; // findings of the running launch
static constexpr int most_said = 20;

std::string format_list(const char *form, va_list list)
{
    char text[1024];
    vsnprintf(text, sizeof text, form, list);
    return text;
}

std::string format(const char *form, ...)
{
    va_list list;
    va_start(list, form);
    std::string text = format_list(form, list);
    va_end(list);
    return text;
}

void report_begin()
{
    report.clear();
    n_said = 0;
}

void report_add(const std::string &text)
{
    if (++n_said > most_said || report.find(text) != std::string::npos)
        return;
    if (!report.empty())
        report += '\n';
    report += text;
}

bool report_any()
{
    return n_said > 0;
}
} // namespace emu

using namespace emu;

const char *emu_report(void)
{
    return report.c_str();
}
