// Command report reads the output of benchmarks, and prints a Markdown table for each of those with further parts, a
// column for each unit. With -plots it also draws them: where the last part of the name is a number, a line for each unit
// over it, with its slope, and otherwise bars of the median or the rate.
//
//	go test -run '^$' -bench Peers -benchtime 1x ./bench | report -plots DIR
package main

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"log"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/perf/benchfmt"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

func main() {
	plots := flag.String("plots", "", "directory for the plots, as SVG")
	flag.Parse()
	if err := run(os.Stdin, os.Stdout, *plots); err != nil {
		log.Fatal("report: ", err)
	}
}

// group are the results whose names differ in the last part.
type group struct {
	name  string
	units []string
	rows  []row
}

type row struct {
	name   string
	values map[string]float64 // by unit
}

func run(in io.Reader, out io.Writer, plots string) error {
	groups, err := read(in)
	if err != nil {
		return err
	}
	for _, g := range groups {
		if err := g.table(out); err != nil {
			return err
		}
		if plots == "" {
			continue
		}
		units := g.units
		if _, err := strconv.Atoi(g.rows[0].name); err != nil {
			main := slices.IndexFunc(units, func(unit string) bool { return strings.Contains(unit, "median") || strings.HasSuffix(unit, "/s") })
			units = units[max(main, 0):][:1]
		}
		for _, unit := range units {
			if err := g.plot(unit, filepath.Join(plots, file(g.name+"-"+unit)+".svg")); err != nil {
				return err
			}
		}
	}
	return nil
}

// read returns the groups in their order. It fails where a benchmark has failed, or none has run.
func read(in io.Reader) (groups []*group, err error) {
	for results := benchfmt.NewReader(in, "the benchmarks"); results.Scan(); {
		result, ok := results.Result().(*benchfmt.Result)
		if !ok {
			continue
		}
		full := strings.TrimSuffix(string(result.Name), "-"+gomaxprocs(result))
		cut := strings.LastIndexByte(full, '/')
		name := full[:max(cut, 0)]
		if len(groups) == 0 || groups[len(groups)-1].name != name {
			groups = append(groups, &group{name: name})
		}
		g, r := groups[len(groups)-1], row{full[cut+1:], map[string]float64{}}
		for _, v := range result.Values {
			if v.Unit == "sec/op" && v.Value == 0 {
				continue
			}
			unit, value := cmp.Or(v.OrigUnit, v.Unit), cmp.Or(v.OrigValue, v.Value)
			if r.values[unit] = value; !slices.Contains(g.units, unit) {
				g.units = append(g.units, unit)
			}
		}
		g.rows = append(g.rows, r)
	}
	if len(groups) == 0 {
		return nil, fmt.Errorf("no benchmark has run")
	}
	return groups, nil
}

// gomaxprocs returns the suffix of the name.
func gomaxprocs(r *benchfmt.Result) string {
	_, parts := r.Name.Parts()
	for _, part := range parts {
		if n, found := strings.CutPrefix(string(part), "-"); found {
			return n
		}
	}
	return ""
}

func (g *group) table(out io.Writer) error {
	text := fmt.Sprintf("\n### %s\n\n| | %s |\n|---%s|\n", g.name, strings.Join(g.units, " | "), strings.Repeat("|---", len(g.units)))
	for _, r := range g.rows {
		text += "| " + r.name
		for _, unit := range g.units {
			if value, measured := r.values[unit]; measured {
				text += " | " + shown(value)
			} else {
				text += " | "
			}
		}
		text += " |\n"
	}
	_, err := io.WriteString(out, text)
	return err
}

// shown returns a number with three digits at least.
func shown(value float64) string {
	if math.Abs(value) >= 100 {
		return strconv.FormatFloat(value, 'f', 0, 64)
	}
	return strconv.FormatFloat(value, 'g', 3, 64)
}

func (g *group) plot(unit, path string) error {
	p := plot.New()
	p.Title.Text, p.Y.Label.Text = g.name, unit
	var points plotter.XYs
	var bars plotter.Values
	var names []string
	for _, r := range g.rows {
		value, measured := r.values[unit]
		if !measured {
			continue
		}
		x, _ := strconv.Atoi(r.name) // 0 in bars
		points, bars, names = append(points, plotter.XY{X: float64(x) / 1e3, Y: value}), append(bars, value), append(names, r.name)
	}
	var err error
	if len(points) > 1 && points[0].X > 0 {
		err = lines(p, points)
	} else {
		var chart *plotter.BarChart
		if chart, err = plotter.NewBarChart(bars, vg.Points(24)); err == nil {
			chart.Color = plotutil.Color(0)
			p.Add(chart)
			p.NominalX(names...)
			p.X.Min, p.X.Max = -0.5, float64(len(bars))-0.5
			p.X.Tick.Label.Rotation, p.X.Tick.Label.XAlign, p.X.Tick.Label.YAlign = 0.4, -1, -0.5
		}
	}
	if err != nil {
		return fmt.Errorf("plot %s of %s: %w", unit, g.name, err)
	}
	return p.Save(16*vg.Centimeter, 9*vg.Centimeter, path)
}

// lines draws points, and says the slope between the last two.
func lines(p *plot.Plot, points plotter.XYs) error {
	line, marks, err := plotter.NewLinePoints(points)
	if err != nil {
		return err
	}
	line.Color, marks.Color = plotutil.Color(0), plotutil.Color(0)
	p.Add(line, marks)
	p.X.Label.Text = "locks, in thousands"
	p.X.Min, p.X.Max, p.Y.Min = 0, 1.05*p.X.Max, math.Min(0, p.Y.Min)
	last, before := points[len(points)-1], points[len(points)-2]
	p.Title.Text += fmt.Sprintf(" (%.3g for each further million)", (last.Y-before.Y)/(last.X-before.X)*1e3)
	return nil
}

// file returns a name without characters that paths and shells take for something else.
func file(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return '-'
	}, name)
}
