//go:build ignore

package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// pod is a container that was started.
type pod struct {
	uid    types.UID
	ip     string
	dir    string
	cmd    *exec.Cmd
	done   chan struct{} // closed when the process has ended
	runs   int
	status core.PodStatus
}

// run starts the container of a pod if it does not run, and makes the status.
func (q *pod) run(ctx context.Context, api *kubernetes.Clientset, p *core.Pod) error {
	c := p.Spec.Containers[0]
	if q.cmd != nil {
		select {
		case <-q.done:
			q.ended(p)
			if p.Spec.RestartPolicy == core.RestartPolicyNever || q.runs > 5 {
				return nil
			}
		default:
			q.running(p)
			return nil
		}
	}
	if err := os.MkdirAll(q.dir, 0o755); err != nil {
		return err
	}
	mounts := []string{}
	for _, v := range p.Spec.Volumes {
		if err := volume(ctx, api, p.Namespace, v, filepath.Join(q.dir, v.Name)); err != nil {
			return err
		}
	}
	for _, m := range c.VolumeMounts {
		mounts = append(mounts, fmt.Sprintf("mkdir -p %[2]q; mount --bind %[1]q %[2]q; ", filepath.Join(q.dir, m.Name), m.MountPath))
	}
	out, err := os.Create(q.log(q.runs))
	if err != nil {
		return err
	}
	q.cmd = exec.Command("unshare", append([]string{"--mount", "--propagation", "private", "sh", "-ec",
		strings.Join(mounts, "") + `exec /unlocker "$@"`, "unlocker"}, c.Args...)...)
	q.cmd.Dir, q.cmd.Stdout, q.cmd.Stderr = "/", out, out
	q.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOSTNAME=" + p.Name, "UNLOCKER_OPS_LISTEN=" + q.ip + ":9480", "UNLOCKER_WEB_LISTEN=" + q.ip + ":9481"}
	for _, e := range c.Env {
		if e.Value != "" && !strings.Contains(e.Value, "$(") {
			q.cmd.Env = append(q.cmd.Env, e.Name+"="+e.Value)
		}
	}
	q.runs++
	if err := q.cmd.Start(); err != nil {
		return err
	}
	q.done = make(chan struct{})
	go func(cmd *exec.Cmd, done chan struct{}) {
		_ = cmd.Wait()
		_ = out.Close()
		close(done)
	}(q.cmd, q.done)
	return nil
}

func (q *pod) log(run int) string { return filepath.Join(q.dir, fmt.Sprint("log-", run)) }

// volume writes the files of a ConfigMap or of Secrets.
func volume(ctx context.Context, api *kubernetes.Clientset, namespace string, v core.Volume, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	files := map[string][]byte{}
	if v.ConfigMap != nil {
		m, err := api.CoreV1().ConfigMaps(namespace).Get(ctx, v.ConfigMap.Name, meta.GetOptions{})
		if err != nil {
			return err
		}
		for file, text := range m.Data {
			files[file] = []byte(text)
		}
	}
	if v.Secret != nil {
		s, err := api.CoreV1().Secrets(namespace).Get(ctx, v.Secret.SecretName, meta.GetOptions{})
		if err != nil {
			return err
		}
		files = s.Data
	}
	for file, content := range files {
		if err := os.WriteFile(filepath.Join(dir, file), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// set makes the status of a pod whose container is in a state.
func (q *pod) set(p *core.Pod, phase core.PodPhase, ready bool, state core.ContainerState) {
	condition := core.PodCondition{Type: core.PodReady, Status: core.ConditionFalse, LastTransitionTime: p.CreationTimestamp}
	if ready {
		condition.Status = core.ConditionTrue
	}
	var last core.ContainerState
	if len(q.status.ContainerStatuses) > 0 {
		if last = q.status.ContainerStatuses[0].LastTerminationState; q.status.ContainerStatuses[0].State.Terminated != nil {
			last = q.status.ContainerStatuses[0].State
		}
	}
	q.status = core.PodStatus{Phase: phase, PodIP: q.ip, PodIPs: []core.PodIP{{IP: q.ip}}, HostIP: "127.0.0.1", HostIPs: []core.HostIP{{IP: "127.0.0.1"}},
		QOSClass: core.PodQOSBurstable, StartTime: &p.CreationTimestamp, Conditions: []core.PodCondition{condition},
		ContainerStatuses: []core.ContainerStatus{{Name: p.Spec.Containers[0].Name, Image: p.Spec.Containers[0].Image, ImageID: "local", ContainerID: "process://" + string(p.UID),
			Ready: ready, RestartCount: int32(q.runs - 1), State: state, LastTerminationState: last}}}
}

func (q *pod) running(p *core.Pod) {
	ready := p.Spec.Containers[0].ReadinessProbe == nil
	if !ready {
		client := http.Client{Timeout: time.Second}
		if resp, err := client.Get("http://" + q.ip + ":9480/readyz"); err == nil {
			ready = resp.StatusCode == http.StatusOK
			_ = resp.Body.Close()
		}
	}
	q.set(p, core.PodRunning, ready, core.ContainerState{Running: &core.ContainerStateRunning{StartedAt: p.CreationTimestamp}})
}

// ended is the status after the process has ended. As a kubelet does, it takes the message from
// the end of the log if the container asks for that.
func (q *pod) ended(p *core.Pod) {
	code := q.cmd.ProcessState.ExitCode()
	t := &core.ContainerStateTerminated{ExitCode: int32(code), Reason: "Completed", StartedAt: p.CreationTimestamp, FinishedAt: p.CreationTimestamp, ContainerID: "process://" + string(p.UID)}
	phase := core.PodSucceeded
	if code != 0 {
		phase, t.Reason = core.PodFailed, "Error"
		if p.Spec.Containers[0].TerminationMessagePolicy == core.TerminationMessageFallbackToLogsOnError {
			text, _ := os.ReadFile(q.log(q.runs - 1))
			t.Message = string(text[max(0, len(text)-2048):])
		}
	}
	if p.Spec.RestartPolicy != core.RestartPolicyNever {
		phase = core.PodRunning
	}
	q.set(p, phase, false, core.ContainerState{Terminated: t})
}

func (q *pod) stop() {
	if q.cmd == nil {
		return
	}
	_ = q.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-q.done:
	case <-time.After(10 * time.Second):
		_ = q.cmd.Process.Kill()
	}
}
