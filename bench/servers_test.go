package bench

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
)

// server is an etcd, a Redis or a Consul in a process of its own.
type server struct {
	b    *testing.B
	addr string
	pid  int
}

// startEtcd runs etcd with its default settings, which sync each commit to disk, and further flags.
func startEtcd(b *testing.B, flags ...string) server {
	program := built(b, "../e2e/etcd.sh", "etcd", "3.7.3")
	addr, peer := etcdtest.FreeAddr(b), etcdtest.FreeAddr(b)
	s := run(b, addr, program, append(flags, "--data-dir", b.TempDir(), "--log-level", "warn",
		"--listen-client-urls", "http://"+addr, "--advertise-client-urls", "http://"+addr,
		"--listen-peer-urls", "http://"+peer, "--initial-advertise-peer-urls", "http://"+peer, "--initial-cluster", "default=http://"+peer)...)
	client := s.etcd()
	require.Eventually(b, func() bool {
		ctx, cancel := context.WithTimeout(b.Context(), time.Second)
		defer cancel()
		_, err := client.Get(ctx, "ready")
		return err == nil
	}, time.Minute, 50*time.Millisecond)
	return s
}

// built returns the path of a program that a script builds, unless it is there.
func built(b *testing.B, script, name, version string) string {
	cache, err := os.UserCacheDir()
	require.NoError(b, err)
	cache = filepath.Join(cache, "unlocker-e2e")
	out, err := exec.CommandContext(b.Context(), script, version, cache).CombinedOutput()
	require.NoError(b, err, "%s", out)
	return filepath.Join(cache, name+"-"+version)
}

// startConsul runs Consul as a cluster of one server with its default settings, which sync each commit to disk.
func startConsul(b *testing.B) server {
	program := built(b, "./consul.sh", "consul", "1.16.2")
	flags := []string{"agent", "-server", "-bootstrap-expect", "1", "-bind", "127.0.0.1", "-client", "127.0.0.1",
		"-data-dir", b.TempDir(), "-hcl", "disable_update_check = true"}
	for _, unused := range []string{"dns", "grpc", "grpc_tls", "serf_wan"} {
		flags = append(flags, "-hcl", "ports { "+unused+" = -1 }")
	}
	var addr string
	for _, used := range []string{"serf_lan", "server", "http"} {
		addr = etcdtest.FreeAddr(b)
		flags = append(flags, "-hcl", "ports { "+used+" = "+addr[strings.LastIndexByte(addr, ':')+1:]+" }")
	}
	return run(b, addr, program, flags...)
}

// consul sends a request to Consul, and returns the status (0 if there is no answer), the index and the body.
func (s server) consul(method, path, body string) (status int, index, text string) {
	req, err := http.NewRequestWithContext(s.b.Context(), method, "http://"+s.addr+"/v1/"+path, strings.NewReader(body))
	require.NoError(s.b, err)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err.Error()
	}
	all, err := io.ReadAll(resp.Body)
	require.NoError(s.b, err)
	require.NoError(s.b, resp.Body.Close())
	return resp.StatusCode, resp.Header.Get("X-Consul-Index"), strings.TrimSpace(string(all))
}

// startRedis runs a Redis without snapshots that syncs each write to disk, or none.
func startRedis(b *testing.B, fsync bool) server {
	args := []string{"--save", "", "--appendonly", "no"}
	if fsync {
		args = []string{"--save", "", "--appendonly", "yes", "--appendfsync", "always"}
	}
	addr := etcdtest.FreeAddr(b)
	host, port, err := net.SplitHostPort(addr)
	require.NoError(b, err)
	s := run(b, addr, "redis-server", append(args, "--bind", host, "--port", port, "--dir", b.TempDir())...)
	require.Eventually(b, func() bool {
		conn, err := redis.Dial("tcp", addr)
		return err == nil && conn.Close() == nil
	}, time.Minute, 50*time.Millisecond)
	return s
}

// run runs a program until the benchmark ends.
func run(b *testing.B, addr, program string, args ...string) server {
	// The cleanup stops it, and the context of b ends before it runs.
	cmd := exec.CommandContext(context.WithoutCancel(b.Context()), program, args...)
	require.NoError(b, cmd.Start())
	b.Cleanup(func() {
		require.NoError(b, cmd.Process.Kill())
		_ = cmd.Wait() // says that it was killed
	})
	return server{b, addr, cmd.Process.Pid}
}

// etcd returns a client with a connection of its own.
func (s server) etcd() *clientv3.Client {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{s.addr}, Logger: zap.NewNop()})
	require.NoError(s.b, err)
	s.b.Cleanup(func() { require.NoError(s.b, client.Close()) })
	return client
}

// etcdMetric returns a counter of etcd.
func (s server) etcdMetric(name string, labels ...string) float64 {
	resp, err := http.Get("http://" + s.addr + "/metrics")
	require.NoError(s.b, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(s.b, err)
	require.NoError(s.b, resp.Body.Close())
	return etcdtest.Metric(s.b, string(body), name, labels...)
}

// etcdRequests returns how many messages clients have sent to etcd, those on streams among
// them, and how many of them were of which kind. etcd counts the end of a stream as a message of it.
func (s server) etcdRequests() map[string]float64 {
	const messages = "grpc_server_msg_received_total"
	return map[string]float64{
		"requests":    s.etcdMetric(messages),
		"txns":        s.etcdMetric(messages, "grpc_method", "Txn"),
		"of-watches":  s.etcdMetric(messages, "grpc_service", "etcdserverpb.Watch"),
		"of-leases":   s.etcdMetric(messages, "grpc_service", "etcdserverpb.Lease"),
		"stream-ends": s.etcdMetric("grpc_server_handled_total", "grpc_type", "bidi_stream"),
	}
}

// etcdTxns returns how many transactions clients have sent to etcd.
func (s server) etcdTxns() float64 {
	return s.etcdMetric("grpc_server_started_total", "grpc_method", "Txn")
}

// redisRequests returns how many commands clients have sent to Redis, without those that
// scripts executed.
func (s server) redisRequests() map[string]float64 {
	sum := 0.
	conn, err := redis.Dial("tcp", s.addr)
	require.NoError(s.b, err)
	stats, err := redis.String(conn.Do("INFO", "commandstats"))
	require.NoError(s.b, err)
	require.NoError(s.b, conn.Close())
	for line := range strings.Lines(stats) {
		for _, command := range []string{"set", "eval", "evalsha"} {
			if calls, found := strings.CutPrefix(line, "cmdstat_"+command+":calls="); found {
				calls, _, _ = strings.Cut(calls, ",")
				n, err := strconv.ParseFloat(calls, 64)
				require.NoError(s.b, err)
				sum += n
			}
		}
	}
	return map[string]float64{"requests": sum}
}

// cpuTime returns the CPU time that a process has used.
func cpuTime(b *testing.B, pid int) time.Duration {
	const tick = 10 * time.Millisecond // USER_HZ is 100 on all architectures of Go
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	require.NoError(b, err)
	_, text, _ := strings.Cut(string(stat), ") ") // after the name of the program
	fields := strings.Fields(text)
	user, err := strconv.Atoi(fields[11])
	require.NoError(b, err)
	system, err := strconv.Atoi(fields[12])
	require.NoError(b, err)
	return time.Duration(user+system) * tick
}
