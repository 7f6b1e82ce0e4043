/* Graphs: what a capture recorded, and its replay. */
#include <driver_types.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"
#include "sim_internal.h"

/* A graph belongs to its handle and, meanwhile, to the capture that fills it. */
struct sim_graph {
  int references;
  size_t count, room;
  sim_node *nodes;
};

sim_graph *sim_graph_create(void) {
  sim_graph *graph = calloc(1, sizeof *graph);
  graph->references = 1;
  return graph;
}

sim_graph *sim_graph_retain(sim_graph *graph) {
  __atomic_add_fetch(&graph->references, 1, __ATOMIC_RELAXED);
  return graph;
}

void sim_graph_release(sim_graph *graph) {
  if (!graph || __atomic_sub_fetch(&graph->references, 1, __ATOMIC_ACQ_REL)) return;
  for (size_t i = 0; i < graph->count; i++)
    if (graph->nodes[i].what == SIM_NODE_GRAPH) sim_graph_release(graph->nodes[i].as.graph);
  free(graph->nodes);
  sim_retire(graph);
}

size_t sim_graph_nodes(const sim_graph *graph) { return graph->count; }

void sim_graph_add(sim_graph *graph, const sim_node *node) {
  if (graph->count == graph->room) {
    graph->room = graph->room ? graph->room * 2 : 64;
    graph->nodes = realloc(graph->nodes, graph->room * sizeof *graph->nodes);
  }
  if (node->what == SIM_NODE_GRAPH) sim_graph_retain(node->as.graph);
  graph->nodes[graph->count++] = *node;
}

/* An executable graph is a snapshot: later additions to its origin do not reach it. */
sim_graph *sim_graph_clone(const sim_graph *graph) {
  sim_graph *copy = sim_graph_create();
  for (size_t i = 0; i < graph->count; i++) sim_graph_add(copy, &graph->nodes[i]);
  return copy;
}

/* Nobody is told of the parts: the host made one call. */
int sim_graph_replay(const sim_graph *graph) {
  int error = cudaSuccess;
  for (size_t i = 0; i < graph->count && !error; i++) {
    const sim_node *node = &graph->nodes[i];
    switch (node->what) {
      case SIM_NODE_COPY: error = sim_copy_now(&node->as.copy); break;
      case SIM_NODE_FILL: error = sim_fill_now(&node->as.fill); break;
      case SIM_NODE_HOST: node->as.host.function(node->as.host.data); break;
      case SIM_NODE_EVENT: sim_event_stamp(node->as.event); break;
      case SIM_NODE_GRAPH: error = sim_graph_replay(node->as.graph); break;
      default: break; /* kernels do not run */
    }
  }
  return error;
}
