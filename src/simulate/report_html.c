/* One page with plots, in one file: inline SVG, light and dark, nothing from elsewhere. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "simulate/plan.h"

#define WIDTH  400.0
#define HEIGHT 240.0
#define LEFT   56.0
#define BOTTOM 34.0
#define TOP    10.0
#define RIGHT  12.0

static const char page_head[] =
    "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
    "<meta name=\"viewport\" "
    "content=\"width=device-width\">\n<title>tarn-simulate</title>\n<style>\n"
    ":root{color-scheme:light dark;--back:#fbfbfa;--text:#1d1f21;--faint:#6c7075;--line:#dcdcd8;"
    "--card:#fff}\n"
    "@media(prefers-color-scheme:dark){:root{--back:#16181a;--text:#e8e8e6;--faint:#9aa0a6;"
    "--line:#34383c;--card:#1e2124}polyline,circle,rect,.key i{filter:brightness(1.2)}}\n"
    "body{background:var(--back);color:var(--text);font:15px/1.5 system-ui,sans-serif;margin:2rem "
    "auto;max-width:1360px;padding:0 1rem}\n"
    "h1{font-size:1.5rem;margin:0 0 .3rem}h2{font-size:1.1rem;margin:2rem 0 .4rem}\n"
    "p{color:var(--faint);margin:.2rem 0 1rem}\n"
    ".plots{display:flex;flex-wrap:wrap;gap:1rem}\n"
    "figure{background:var(--card);border:1px solid var(--line);border-radius:8px;margin:0;"
    "padding:.7rem}\nfigcaption{font-weight:600;font-size:.9rem}\n"
    "svg{display:block;max-width:100%;height:auto}svg text{fill:var(--faint);font-size:11px}\n"
    ".axis{stroke:var(--line)}\n"
    ".key{display:flex;flex-wrap:wrap;gap:.2rem 1rem;margin:.6rem 0}.key i{display:inline-block;"
    "width:.8rem;height:.8rem;border-radius:2px;margin-right:.35rem;vertical-align:-1px}\n"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.85rem;margin-top:"
    "1rem}\nth,td{padding:.15rem .6rem;text-align:right;border-bottom:1px solid var(--line)}\n"
    "th{color:var(--faint);font-weight:500}td:nth-child(2),th:nth-child(2){text-align:left}\n"
    "div.wide{overflow-x:auto}\n</style>\n</head>\n<body>\n<h1>tarn-simulate</h1>\n";

/* Told apart also by those who see red and green as one (Okabe and Ito 2008), and more. */
static const char *const colours[] = {"#0072b2", "#e69f00", "#009e73", "#cc79a7",
                                      "#56b4e9", "#d55e00", "#8c6bb1", "#a6761d",
                                      "#b2182b", "#7a8b99", "#66c2a5", "#c9b400"};

static const char *colour_of(const struct sim_plan *p, const char *route) {
    size_t i = 0;
    while (i < p->routes.n && strcmp(p->routes.v[i], route) != 0) i++;
    return colours[i % ARRAY_LEN(colours)];
}

static void html_text(struct buf *out, const char *s) {
    for (; *s != '\0'; s++) {
        if (*s == '<')
            buf_append_str(out, "&lt;");
        else if (*s == '&')
            buf_append_str(out, "&amp;");
        else
            buf_append_char(out, *s);
    }
}

/* What a plot shows of a run. */
struct measure {
    const char *title;
    double (*of)(const struct cell *c);
};
static double ttft_mean(const struct cell *c) {
    return c->result.ttft.mean;
}
static double ttft_p90(const struct cell *c) {
    return c->result.ttft.p90;
}
static double tbt_p90(const struct cell *c) {
    return c->result.tbt.p90 * 1e3;
}
static double good_s(const struct cell *c) {
    return c->result.goodput;
}
static double hits_all(const struct cell *c) {
    return c->result.device + c->result.host + c->result.pool;
}
static double rejected_all(const struct cell *c) {
    return 100 * cell_rejected(c);
}
static const struct measure measures[] = {
    {"Mean TTFT, seconds", ttft_mean},
    {"p90 TTFT, seconds", ttft_p90},
    {"p90 TBT, ms", tbt_p90},
    {"Requests a second within both limits", good_s},
    {"Tokens of prompts found somewhere, share", hits_all},
    {"Requests rejected, %", rejected_all},
};

/* A round number not below x, of which a few make an axis. */
static double axis_top(double x) {
    if (x <= 0) return 1;
    double unit = pow(10, floor(log10(x)));
    double steps = x / unit;
    return unit * (steps <= 1 ? 1 : steps <= 2 ? 2 : steps <= 2.5 ? 2.5 : steps <= 5 ? 5 : 10);
}

struct frame {
    double low, high, top; /* x from low to high, y up to top */
};
static double frame_x(const struct frame *f, double x) {
    double share = f->high > f->low ? (x - f->low) / (f->high - f->low) : 0.5;
    return LEFT + share * (WIDTH - LEFT - RIGHT);
}
static double frame_y(const struct frame *f, double y) {
    return TOP + (1 - fmin(y / f->top, 1)) * (HEIGHT - TOP - BOTTOM);
}

static void axis_draw(struct buf *out, const struct frame *f) {
    for (unsigned i = 0; i <= 4; i++) {
        double y = f->top * i / 4, at = frame_y(f, y);
        buf_printf(out,
                   "<line class=\"axis\" x1=\"%g\" x2=\"%g\" y1=\"%.1f\" y2=\"%.1f\"/>"
                   "<text x=\"%g\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n",
                   LEFT, WIDTH - RIGHT, at, at, LEFT - 6, at + 4, y);
    }
}

/* Cells [from, to) with one deployment and pool: a line for each policy over the loads. */
static void plot_lines(const struct sim_plan *p, size_t from, size_t to, const struct measure *m,
                       struct buf *out) {
    struct frame f = {INFINITY, -INFINITY, 0};
    for (size_t i = from; i < to; i++) {
        f.low = fmin(f.low, p->cells[i].load);
        f.high = fmax(f.high, p->cells[i].load);
        f.top = fmax(f.top, m->of(&p->cells[i]));
    }
    f.top = axis_top(f.top);
    axis_draw(out, &f);
    for (size_t l = 0; l < p->loads.n; l++)
        buf_printf(out, "<text x=\"%.1f\" y=\"%g\" text-anchor=\"middle\">%g</text>\n",
                   frame_x(&f, p->loads.v[l]), HEIGHT - 14, p->loads.v[l]);
    buf_printf(out, "<text x=\"%g\" y=\"%g\" text-anchor=\"end\">load</text>\n", WIDTH - RIGHT,
               HEIGHT - 2);
    for (size_t r = p->routes.n; r-- > 0;) { /* the first one on top */
        const char *colour = colour_of(p, p->routes.v[r]);
        buf_printf(out, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" points=\"",
                   colour);
        for (size_t i = from + r; i < to; i += p->routes.n)
            buf_printf(out, "%.1f,%.1f ", frame_x(&f, p->cells[i].load),
                       frame_y(&f, m->of(&p->cells[i])));
        buf_append_str(out, "\"/>\n");
        for (size_t i = from + r; i < to; i += p->routes.n)
            buf_printf(out,
                       "<circle r=\"3.5\" fill=\"%s\" cx=\"%.1f\" cy=\"%.1f\"><title>%s: %.4g"
                       "</title></circle>\n",
                       colour, frame_x(&f, p->cells[i].load), frame_y(&f, m->of(&p->cells[i])),
                       p->routes.v[r], m->of(&p->cells[i]));
    }
}

static void plot_bars(const struct sim_plan *p, size_t from, size_t to, const struct measure *m,
                      struct buf *out) {
    struct frame f = {0, (double)(to - from), 0};
    for (size_t i = from; i < to; i++) f.top = fmax(f.top, m->of(&p->cells[i]));
    f.top = axis_top(f.top);
    axis_draw(out, &f);
    for (size_t i = from; i < to; i++) {
        double x = frame_x(&f, (double)(i - from) + 0.15), y = frame_y(&f, m->of(&p->cells[i]));
        double width = frame_x(&f, 0.7) - frame_x(&f, 0);
        buf_printf(
            out,
            "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" rx=\"2\" fill=\"%s\">"
            "<title>%s: %.4g</title></rect>\n",
            x, y, width, frame_y(&f, 0) - y, colour_of(p, p->cells[i].route), p->cells[i].route,
            m->of(&p->cells[i]));
        buf_printf(out, "<text x=\"%.1f\" y=\"%g\" text-anchor=\"middle\">%.3g</text>\n",
                   x + width / 2, HEIGHT - 16, m->of(&p->cells[i]));
    }
}

static void plots_write(const struct sim_plan *p, size_t from, size_t to, struct buf *out) {
    buf_append_str(out, "<div class=\"plots\">\n");
    for (size_t k = 0; k < ARRAY_LEN(measures); k++) {
        buf_printf(out,
                   "<figure><figcaption>%s</figcaption><svg width=\"%g\" viewBox=\"0 0 %g %g\" "
                   "role=\"img\" "
                   "aria-label=\"%s\">\n",
                   measures[k].title, WIDTH, WIDTH, HEIGHT, measures[k].title);
        (p->loads.n > 1 ? plot_lines : plot_bars)(p, from, to, &measures[k], out);
        buf_append_str(out, "</svg></figure>\n");
    }
    buf_append_str(out, "</div>\n");
}

static void table_write(const struct sim_plan *p, size_t from, size_t to, struct buf *out) {
    buf_append_str(
        out, "<div class=\"wide\"><table><tr><th>load</th><th>route</th><th>requests/s</th>"
             "<th>TTFT mean ms</th><th>p50</th><th>p90</th><th>p99</th><th>TBT mean ms</th>"
             "<th>p90</th><th>p99</th><th>within limits/s</th><th>rejected</th><th>device</th>"
             "<th>host</th><th>pool</th><th>prefill saved s</th><th>moved "
             "GB</th><th>copies</th></tr>\n");
    for (size_t i = from; i < to; i++) {
        const struct cell *c = &p->cells[i];
        const struct sim_result *r = &c->result;
        char load[16] = "";
        if (c->load > 0) snprintf(load, sizeof(load), "%.2f", c->load);
        buf_printf(out,
                   "<tr><td>%s</td><td>%s</td><td>%.3g</td><td>%.0f</td><td>%.0f</td><td>%.0f</td>"
                   "<td>%.0f</td><td>%.1f</td><td>%.1f</td><td>%.1f</td>",
                   load, c->route, c->rate, r->ttft.mean * 1e3, r->ttft.p50 * 1e3,
                   r->ttft.p90 * 1e3, r->ttft.p99 * 1e3, r->tbt.mean * 1e3, r->tbt.p90 * 1e3,
                   r->tbt.p99 * 1e3);
        buf_printf(out,
                   "<td>%.3f</td><td>%.1f %%</td><td>%.3f</td><td>%.3f</td><td>%.3f</td>"
                   "<td>%.0f</td><td>%.0f</td><td>%llu</td></tr>\n",
                   r->goodput, 100 * cell_rejected(c), r->device, r->host, r->pool, r->saved_s,
                   r->moved_bytes / 1e9, (unsigned long long)r->copies);
    }
    buf_append_str(out, "</table></div>\n");
}

static void key_write(const struct sim_plan *p, struct buf *out) {
    buf_append_str(out, "<div class=\"key\">");
    for (size_t r = 0; r < p->routes.n; r++)
        buf_printf(out, "<span><i style=\"background:%s\"></i>%s</span>",
                   colour_of(p, p->routes.v[r]), p->routes.v[r]);
    buf_append_str(out, "</div>\n");
}

static size_t group_end(const struct sim_plan *p, size_t from) {
    const struct cell *a = &p->cells[from];
    size_t i = from;
    while (i < p->n && cell_alike(&p->cells[i], a)) i++;
    return i;
}

void report_html(const struct sim_plan *p, struct buf *out) {
    struct buf words = {0};
    report_setting(p, &words);
    buf_append_char(&words, '\0');
    buf_append_str(out, page_head);
    buf_append_str(out, "<p>");
    html_text(out, words.data);
    buf_printf(
        out,
        ".<br>TBT: the mean of the longest tenth of a request's gaps. Load 1: what round-robin "
        "can just bear, with both limits kept for %.0f %% of the requests.</p>\n",
        100 * SIM_KEPT_SHARE);
    buf_free(&words);
    key_write(p, out);
    for (size_t from = 0, to; from < p->n; from = to) {
        to = group_end(p, from);
        buf_append_str(out, "<h2>");
        cell_words(p, &p->cells[from], out);
        buf_append_str(out, "</h2>\n");
        plots_write(p, from, to, out);
        table_write(p, from, to, out);
    }
    buf_append_str(out, "</body>\n</html>\n");
}
