"""PURE: a TrainingJob with comments, to begin with; ``edl example`` prints it."""

from __future__ import annotations

EXAMPLE = """\
# A training job whose number of trainers follows the room that the cluster has.
# Check it with `edl validate FILE`, start it with `edl submit FILE`.
apiVersion: paddlepaddle.org/v1
kind: TrainingJob
metadata:
  name: digits            # at most 253 characters; longer names than about 50 are cut in the names of pods
spec:
  image: registry.example.com/digits:1    # of all roles; each may have its own
  port: 7164              # the pservers' first port
  fault_tolerant: true    # trainers may come and go; without it min-instance must equal max-instance
  passes: 5

  trainer:
    entrypoint: python train.py --batch 64    # split into words, never given to a shell; or `command: [...]`
    workspace: /work
    min-instance: 1       # always kept
    max-instance: 8       # at most, when there is room
    resources:            # of one trainer; amounts as in Kubernetes
      requests: {cpu: 500m, memory: 256Mi}
      limits: {cpu: "1", memory: 512Mi}       # GPUs: nvidia.com/gpu: 1
    env:
    - name: LEARNING_RATE
      value: "0.1"
    # - name: API_TOKEN
    #   valueFrom: {secretKeyRef: {name: my-secret, key: token}}

  pserver:                # without an entrypoint the image's own start script runs, as in the original
    entrypoint: python pserver.py
    min-instance: 2       # their number stays as long as the job runs
    resources:
      requests: {cpu: 500m, memory: 256Mi}

  volumes:                # given to all pods, and mounted in all
  - name: checkpoints
    persistentVolumeClaim: {claimName: digits}
  VolumeMounts:
  - name: checkpoints
    mountPath: /checkpoints

  # etcd, where trainers and pservers find each other: the controller's, else one in the job's master pod.
  # etcd:
  #   endpoints: ["https://etcd-0.example.com:2379"]
  #   tls: {secretName: etcd-client, clientCertificate: true}   # ca.crt; with clientCertificate tls.crt, tls.key too
  #   credentials: {secretName: etcd-login}     # username, password

  autoscaling:
    enabled: true
    drainSeconds: 30      # how long a trainer that has to go may take to finish its task
    priority: 0           # jobs of a higher priority come first
    weight: 1             # a job's share among those of the same priority

  suspend: false          # true stops all pods and keeps the job
  cleanPodPolicy: Running # what goes when the job has ended: Running, All or None
  ttlSecondsAfterFinished: 86400
  # activeDeadlineSeconds: 7200
  # backoffLimit: 100     # failed trainers after which the job has failed
"""
